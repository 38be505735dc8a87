// The charts of a diagnosis: loss, gradient norm and loss scale by iteration.
State.across = "iteration";
for (const options of DATA.charts) new Chart(document.getElementById("charts"), options);
