"""The signals of the record, a file each: noted while a program runs, frozen at its end."""
