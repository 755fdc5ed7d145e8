"""The lowest coverage measured for each bound and estimate, copied from docs/coverage.md; tests/coverage compares.

Nominal coverage is 0.95. Simulated shares are of 2,000 audits: one just below 0.95 is within their noise.
"""

MEASURED: dict[str, float] = {
    "one-run": 0.9455,
    "one-run f-DP": 0.9564,
    "Clopper-Pearson, fixed": 0.9821,
    "Gaussian, fixed threshold": 0.996,
    "one-run f-DP, curve": 0.956,
    "Clopper-Pearson, split": 0.9955,
    "ROC band": 0.9995,
    "DKW band": 0.999,
    "AUROC": 1.0,
    "ROC violates the curve": 0.999,
    "Bayesian interval": 0.0,
    "one-run Gaussian": 0.961,
    "Gaussian, split halves": 0.9975,
    "one-run, if the trainer differs from the plan in its noise alone": 0.989,
    "one-shot canaries": 0.944,
}
