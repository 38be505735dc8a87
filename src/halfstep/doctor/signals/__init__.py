"""The signals of the record, one file each: collected while a program runs, frozen at its end."""
