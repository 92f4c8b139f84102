"""What a student is distilled by: MCD and its rivals."""
