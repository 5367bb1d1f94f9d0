"""What users see: progress, options, and the cards that objects show of themselves. It draws events and facts and decides nothing."""
