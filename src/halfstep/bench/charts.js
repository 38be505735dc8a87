// The charts of a bench, as its data describe them.
for (const options of DATA.charts) new Chart(document.getElementById("charts"), options);
