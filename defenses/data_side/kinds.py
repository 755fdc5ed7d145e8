"""The kinds of ``data_defenses``."""

from typing import Annotated, TypeAlias

from heldin.base.kinds import Family, OfKind
from heldin.defenses.data_side.contract import DataSideDefense

DATA_DEFENSES = Family[DataSideDefense](
    "defenses",
    DataSideDefense,
    {
        "deduplicate": "heldin.defenses.data_side.deduplicate:Deduplicate",
        "cap": "heldin.defenses.data_side.cap:Cap",
        "deidentify": "heldin.defenses.data_side.deidentify:DeIdentify",
    },
)
DataDefense: TypeAlias = Annotated[DataSideDefense, OfKind(DATA_DEFENSES)]
