"""The activities: everything with an effect or a secret. One file here for each activity type."""
