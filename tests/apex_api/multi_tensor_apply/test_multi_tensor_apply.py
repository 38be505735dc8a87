"""The caller of multi-tensor kernels passes its arguments on, as Apex's did."""

import torch

from halfstep.apex import amp_C
from halfstep.apex.multi_tensor_apply import multi_tensor_applier


def test_a_kernel_is_called_with_the_chunk_size_first():
    assert multi_tensor_applier.available is True
    assert multi_tensor_applier.chunk_size == 65536
    multi_tensor_applier.check_avail()
    given = multi_tensor_applier(lambda *arguments: arguments, "flag", [[1], [2]], 3.0)
    assert given == (65536, "flag", [[1], [2]], 3.0)


def test_the_norm_of_gradients_as_bert_scripts_take_it():
    grads = [torch.randn(3, 4), torch.randn(5).half()]
    norm, _ = multi_tensor_applier(amp_C.multi_tensor_l2norm, torch.zeros(1), [grads], 0)
    expected = torch.cat([grad.double().flatten() for grad in grads]).norm()
    torch.testing.assert_close(norm.double(), expected.reshape(1), rtol=1e-6, atol=0)
