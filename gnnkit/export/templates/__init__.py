"""Programs that a job starts from where the user has none: one for each kind of batch, copied as they are but for their constants."""
