"""One self-contained page that shows a comparison: it works offline and from a mail's attachment.

`curves` reads what the runs logged, `page` brings it together with the rows, and `document` makes
a page of any report. What a browser runs is plain JavaScript in this folder, inlined; nothing is
fetched from anywhere.
"""
