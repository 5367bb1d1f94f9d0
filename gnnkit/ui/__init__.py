"""The display for users: progress, options, and cards of objects. It draws events and facts and decides nothing."""
