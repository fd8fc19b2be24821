"""Results of studies of regions that nobody ran, in the test's own database."""

from dataclasses import replace

import torch
from sample_results import ENVIRONMENT, STUDY, comparison, correct

from tunebench.db.connection.database import open_database
from tunebench.db.entries.study_log import open_study
from tunebench.studies.inductor.known import model_in, problem_of, regions_folder
from tunebench.studies.inductor.region import Region
from tunebench.tuner.device import find_device
from tunebench.tuner.result import Baseline, Ratio


def record(region: Region, over_compiled: Ratio) -> None:
    """Record a study whose winner is the region's default, so many times faster than torch.compile's code."""
    model, device = model_in(regions_folder() / region.name), find_device("cpu")
    problem = problem_of(model, region)
    assert problem is not None
    kernel = model.kernel
    study = replace(STUDY, kernel=kernel.name, source_digest=kernel.digest, problem=problem, device=device)
    winner = kernel.space.default_for(problem, device)
    ratios = {Baseline.REFERENCE: Ratio(3.0, 2.9, 3.1, 40, 0.99), Baseline.COMPILED: over_compiled}
    with open_database() as database:
        log = open_study(database, study, replace(ENVIRONMENT, torch=str(torch.__version__), cuda=torch.version.cuda))
        log.record(replace(correct(0), configuration=winner))
        log.conclude(replace(comparison(0), best=winner, speedups=ratios, missing={}))
