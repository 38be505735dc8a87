"""`import apex` finds halfstep.apex, and only while it is installed."""

import subprocess
import sys

import pytest

import halfstep.apex


@pytest.fixture
def installed():
    halfstep.apex.install()
    yield
    halfstep.apex.uninstall()


def test_every_import_that_programs_write_works(installed):
    names = {}
    exec(
        """
import apex
import apex.amp
from apex import amp
from apex.amp import _amp_state
from apex.amp._amp_state import _amp_state as state
from apex.amp._amp_state import maybe_print, master_params
from apex.amp.frontend import initialize
from apex.amp.handle import AmpHandle, scale_loss
from apex.amp.lists import functional_overrides
from apex.amp.opt import OptimWrapper
from apex.amp.scaler import LossScaler
from apex.fp16_utils import FP16_Optimizer, network_to_half
from apex.fp16_utils.fp16util import convert_network, to_python_float
from apex.fp16_utils.fp16_optimizer import FP16_Optimizer
from apex.fp16_utils.loss_scaler import DynamicLossScaler
from apex.multi_tensor_apply import multi_tensor_applier
from apex.parallel.distributed import flat_dist_call
from apex.parallel.multiproc import main
from apex.parallel import DistributedDataParallel as DDP, convert_syncbn_model
from apex.parallel.LARC import LARC
from apex.optimizers import FusedAdam
from apex.normalization import FusedLayerNorm
from apex.normalization.fused_layer_norm import FusedRMSNorm
parallel = apex.parallel
""",
        names,
    )
    assert names["apex"] is halfstep.apex
    assert names["amp"] is names["apex"].amp is halfstep.apex.amp
    assert names["state"] is names["_amp_state"] is halfstep.apex.amp._amp_state
    assert names["LossScaler"].__module__ == "halfstep.apex.amp.scaler"
    assert halfstep.apex.amp.__spec__.name == "halfstep.apex.amp"
    assert names["parallel"] is halfstep.apex.parallel
    assert names["amp"].lists.functional_overrides is names["functional_overrides"]


def test_installing_twice_changes_nothing(installed):
    finders = list(sys.meta_path)
    halfstep.apex.install()
    assert sys.meta_path == finders


def test_what_apex_does_not_have_is_not_found(installed):
    said = r"'apex\.contrib\.sparsity': halfstep\.apex, which stands in for Apex, does not have it"
    with pytest.raises(ModuleNotFoundError, match=said):
        exec("import apex.contrib.sparsity")
    with pytest.raises(ImportError, match="'sparsity'"):
        exec("from apex.contrib import sparsity")
    with pytest.raises(ImportError, match="'ampp'"):
        exec("from apex import ampp")


def test_compiled_parts_beside_apex_are_found(installed):
    names = {}
    exec("import amp_C, apex_C\nfrom apex.multi_tensor_apply import multi_tensor_applier", names)
    assert names["amp_C"] is halfstep.apex.amp_C
    assert names["apex_C"] is halfstep.apex.apex_C
    assert names["multi_tensor_applier"].available


def test_uninstalling_leaves_nothing(installed):
    exec("from apex import amp\nimport amp_C")
    halfstep.apex.uninstall()
    assert not [name for name in sys.modules if name.split(".")[0] in {"apex", "amp_C", "apex_C"}]
    halfstep.apex.install()


def test_another_apex_that_is_imported_already_is_refused(monkeypatch):
    other = type(sys)("apex")
    other.__file__ = "/elsewhere/apex/__init__.py"
    monkeypatch.setitem(sys.modules, "apex", other)
    with pytest.raises(RuntimeError, match=r"from /elsewhere/apex/__init__.py; call"):
        halfstep.apex.install()
    assert sys.modules["apex"] is other


def test_importing_halfstep_apex_imports_neither_torch_nor_apex():
    program = (
        "import sys, halfstep.apex; print('torch' in sys.modules, 'apex' in sys.modules); "
        "print(hasattr(halfstep.apex, 'transformer'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False", "False"]
