"""The sources of images and labels; a source reads single images."""
