"""What a user may type: the settings of `launchopt run`, and the completion of words in a shell."""
