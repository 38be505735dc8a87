"""An optimizer and its accumulation window; what closes a window is unknown here."""
