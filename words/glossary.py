"""The glossary: terms that reports explain, and further terms. heldin generates docs/glossary.md from the two lists."""

# Reports explain those that they use, so there are at most twenty.
TERMS = {
    "leaks": "an attack identifies members better than guessing (the probability of a false alarm is at most 5 %), or"
    " the scores contradict a guarantee.",
    "no leak found": "the upper confidence limits of all scores are below a threshold that was fixed in advance."
    " Nothing shows that the model failed to learn.",
    "inconclusive": "the audit shows no leak, but cannot rule out a leak above the threshold that was fixed in"
    " advance.",
    "not valid": "the audit does not test the model, for example because members and non-members differ even without"
    " the model.",
    "member": "a person whose texts were used for training. A non-member is a comparable person whose texts were not"
    " used.",
    "certified": "true with the stated probability, under conditions that heldin checked or that a named person"
    " declared.",
    "indicative": "computed like a certified number, but a condition was not checked, not declared or not met.",
    "estimate": "a number for which no theorem limits how often it is wrong.",
    "confidence interval": "a range that contains the true number in 95 of 100 such audits.",
    "false-positive rate": "the share of non-members that an attack wrongly flags (FPR).",
    "true-positive rate": "the share of members that an attack rightly flags (TPR).",
    "canary user": "an artificial or altered user, planted by the auditor to test the training.",
    "nat": "a unit of loss. If the loss of a text rises by 1 nat, the text becomes 2.72 times less likely.",
    "epsilon": "the limit of differential privacy (DP). Adding or removing the protected texts, such as one person's"
    " texts, makes every outcome at most e^epsilon times as likely. A smaller epsilon protects more.",
    "delta": "the largest probability by which an outcome may exceed the limit of epsilon.",
    "AUROC": "how often a random member has a higher score than a random non-member: 0.5 is guessing, 1 is certainty.",
    "adjusted p-value": "how often random reassignments of the members give a result at least as large, corrected for"
    " all scores that were tried.",
    "simultaneous": "an interval is simultaneous if it is valid for all scores at once, including the largest score.",
    "one-run": "a one-run lower limit of epsilon needs only one training run. An attacker guesses the coin flips of"
    " many people in this run (Steinke et al. 2023; Mahloujifar et al. 2024).",
    "commitment": "a hash that fixes a secret without revealing it. After the secret is revealed, anyone can check it"
    " against the hash.",
}

FURTHER = {
    "attack": "a rule that computes a score for each user from the outputs of the model that the attacker sees.",
    "attacker's level": "the outputs of the model that the attacker sees: log-probabilities of given texts,"
    " log-probabilities of the likeliest next tokens (top-k), or only text that the model writes.",
    "banded noise": "noise in private training that partly cancels in later steps. The users are divided into"
    " groups, and each step draws users from the next group.",
    "base model": "the model before fine-tuning.",
    "baseline": "an attack that never sees the audited model. If a baseline distinguishes members from non-members, the"
    " two groups differ without the model.",
    "claim": "an epsilon and a delta that somebody states. An audit can contradict a claim, but can never confirm a"
    " claim.",
    "clip norm": "the largest norm that one unit's gradient may have in a step of private training.",
    "cohort": "the expected number of users that one step of private training draws.",
    "coin": "an independent fair coin flip that decides whether a user is a member. heldin draws coins from a secret"
    " key of the run.",
    "deciding attack": "the strongest attack that passes the test of all attacks together. If there is a leak, page"
    " one counts people by this attack.",
    "ELS": "example-level sampling: each step draws records. A limit on the number of records per user extends the"
    " guarantee to users.",
    "exposure": "how highly the model ranks a canary user's planted text among similar texts that nobody planted, in"
    " bits. A higher exposure means that the model prefers the planted text more strongly.",
    "extraction": "an attack that makes the model write out a training text.",
    "fresh text": "a text by a member or a non-member that was not used for training.",
    "gain": "the base model's loss minus the fine-tuned model's loss, on texts of non-members. For preference pairs,"
    " the gain is the increase in the margin.",
    "held in, held out": "the terms that options, configurations and files use for members and non-members.",
    "ledger": "the owner-only folder of a run that contains the list of members and the secret key of the coins.",
    "margin": "the log-likelihood ratio between model and reference for the chosen answer of a preference pair, minus"
    " this ratio for the rejected answer.",
    "perplexity": "the exponential of the mean loss per token. A model with perplexity N predicts as well as a"
    " uniform guess among N tokens. Compare perplexities only between models with the same tokenizer, on the same"
    " texts.",
    "plan": "the file plan.json, which states the mechanism of a training run and its epsilon. The trainer runs the"
    " plan, the accountant reads it, and the audit tests it.",
    "planted set": "training data that heldin makes for a model that somebody else trains. Coin flips decide which"
    " users and canary users are in the data.",
    "preference pair": "a prompt with two answers: one that a person chose, and one that the same person rejected.",
    "primary attack": "the attack that the configuration names in advance. Bounds and claims use this attack. If"
    " there is no leak, page one counts people by the primary attack.",
    "record": "the file record.json, with every number in a report. In a corpus, a record is one text with its user.",
    "reference model": "a model that was not trained on the audited users' texts. Attacks compare the audited model"
    " with the reference model, which is often the base model.",
    "repetition": "all training runs of a sweep that share one draw of coins. Sweep files call a repetition a block.",
    "score": "a number for each user. A higher score means that the user is more likely a member.",
    "sweep": "a batch of training runs that compares defenses on the same users.",
    "ULS": "user-level sampling: each step draws users, and clips the mean gradient of each drawn user.",
    "unit of privacy": "the data that a guarantee protects: all texts of a user, one example, or a user and an entity.",
    "user": "all records with the same name in the user column of a corpus.",
    "user-entity DP": "a guarantee for a user together with an entity, such as a person who is named in texts.",
    "user inference": "an attack that uses a model and a few texts of a user to decide whether this user is a member.",
    "white-box audit": "a test that watches each step of a trainer.",
}
