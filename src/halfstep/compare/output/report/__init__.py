"""The report of a comparison: one self-contained HTML page that also works offline.

`curves` reads the metrics of the runs, `page` combines them with the rows, and `show.document`
creates the HTML of any report. The JavaScript of the page is plain and inlined; the page loads
nothing from the network.
"""
