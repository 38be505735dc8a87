"""Programs that can do without compiled kernels are told that there are none."""

import pytest

from halfstep.apex.multi_tensor_apply import multi_tensor_applier


def test_kernels_are_not_available_and_a_call_says_what_to_write():
    assert multi_tensor_applier.available is False
    assert multi_tensor_applier.chunk_size == 65536
    assert isinstance(multi_tensor_applier.import_err, ImportError)
    for call in (multi_tensor_applier.check_avail, lambda: multi_tensor_applier(max, None, [[]])):
        with pytest.raises(RuntimeError, match=r"MultiTensorApply is not available.*_foreach_norm"):
            call()
