"""The activities: everything with an effect or a secret – models, tools and the journal. One file each activity type."""
