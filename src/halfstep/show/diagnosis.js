// The charts of a diagnosis: loss, gradient norm and loss scale by step.
State.across = "step";
for (const options of DATA.charts) new Chart(document.getElementById("charts"), options);
