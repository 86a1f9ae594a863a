"""What the report page shows: facts about files, binned and scaled into pictures."""
