// Draws the charts of a bench from the page's data.
for (const options of DATA.charts) new Chart(document.getElementById("charts"), options);
