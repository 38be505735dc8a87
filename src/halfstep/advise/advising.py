"""The whole of `halfstep advise`: costs, the safety of recipes, the choice, its verification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.advise import answer as answers
from halfstep.advise.budget import Budget
from halfstep.advise.choose.advice import CANDIDATES
from halfstep.advise.choose.verify import Verifier
from halfstep.advise.predict import forecast
from halfstep.advise.report import files
from halfstep.advise.subject import BATCHES, find

if TYPE_CHECKING:
    from halfstep.advise.answer import Answer
    from halfstep.advise.request import Request
    from halfstep.advise.terminal import Terminal

VERIFICATION = 1 / 3  # of the budget, at most


def advise(request: Request, terminal: Terminal) -> Answer:
    """Answer a request, and print each part of the answer as soon as it is known.

    Args:
        request: The request; it was checked.
        terminal: Prints the parts.

    Raises:
        ValueError: If the subject cannot be trained in fp32 or traced, or a file not be written.
    """
    clock = Budget(request.budget)
    names, gpus = request.named or CANDIDATES, request.gpus
    with terminal.progress(1 + len(names)) as tell:
        subject = find(
            request.subject,
            request.options,
            batches=request.batches,
            loss=request.loss,
            optimizer=request.optimizer,
            learning_rate=request.lr,
            seed=request.seed,
            images=request.images,
        )
        if request.images is None and len(subject.batches) < BATCHES:
            terminal.few(len(subject.batches), BATCHES)
        forecaster = forecast.Forecaster(
            subject,
            batch=request.batch_size,
            memory=request.memory,
            tell=tell,
            check=clock.check,
        )
        partly = not request.only_costs
        costs = forecast.forecasts(forecaster, names, gpus, partly=partly) if gpus else []
    if costs:  # printed now, because the next stages take much longer
        terminal.costs(subject, costs, names, request.examination if request.only_costs else None)
    before_search = clock.used()
    if request.only_costs:
        found = answers.Answer(subject, None, tuple(costs))
    else:
        with terminal.progress(1 + len(names)) as tell:
            forecaster.tell = tell
            found = answers.answer(
                subject,
                names,
                gpus,
                forecaster=forecaster,
                seed=request.seed,
                budget=clock.left(),
                tell=tell,
            )
    before, verifies = found, request.verify is not False and found.advice is not None
    available = min(clock.left(), request.budget * VERIFICATION)
    terminal.answer(found, costs, before_search + found.needed, available if verifies else None)
    if verifies:
        recipes = len(found.recommended)
        with terminal.progress() as tell:
            verifier = Verifier(subject, request.seed, available, tell, recipes=recipes)
            found = answers.verify(found, verifier)
    terminal.settings(found, before)
    if request.out is not None:
        terminal.files(found, files.write(request.out, found), request.out)
    return found
