"""The activities: all that has an effect or a secret. One file here for each activity type; ``registry`` lists them."""
