"""What an activity resolves from the catalog and the journal before it acts: values, models, prompts and schemas."""
