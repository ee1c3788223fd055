# SPDX-License-Identifier: Apache-2.0
"""The static kernel gate notices what it is for, on logs as ptxas and cuobjdump write them."""

import json

import check_kernels

LOG = """\
ptxas info    : 11 bytes gmem
ptxas info    : Compiling entry function '_Z5firstv' for 'sm_90a'
ptxas info    : Function properties for _Z5firstv
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Function properties for _Z6calleev
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 12288 bytes smem, 376 bytes cmem[0]
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Compiling entry function '_Z6secondv' for 'sm_80'
ptxas info    : Function properties for _Z6secondv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, used 0 barriers, 376 bytes cmem[0]
"""

SASS = """\
Fatbin elf code:
arch = sm_90a
		Function : _Z5firstv
        /*0340*/              @P0 BRA 0x540 ;                      /* 0x00000000000c0947 */
        /*0350*/                   HGMMA.64x32x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0360*/             @!P1 HMMA.16816.F32.BF16 R4, R4, R8, RZ ;
"""


def test_a_log_gives_resources_per_kernel_and_architecture():
    kernels, serialised = check_kernels.parse_log(LOG)
    assert kernels == {
        ("_Z5firstv", "sm_90a"): {"registers": 168, "shared": 12288, "stack": 16, "spills": 20},
        ("_Z6secondv", "sm_80"): {"registers": 16, "shared": 0, "stack": 0, "spills": 0},
    }
    assert len(serialised) == 1


def test_sass_gives_tensor_core_instructions():
    assert check_kernels.parse_sass(SASS) == {("_Z5firstv", "sm_90a"): {"HGMMA": 1, "HMMA": 1}}


def test_each_difference_from_the_record_is_a_fault():
    recorded = {"same": {"registers": 1}, "gone": {"registers": 1}, "changed": {"registers": 1}}
    found = {"same": {"registers": 1}, "changed": {"registers": 2}, "added": {"registers": 1}}
    faults = check_kernels.compare(found, recorded)
    assert len(faults) == 3
    assert not any("same" in fault for fault in faults)


def test_only_what_the_build_makes_is_read_and_a_missing_log_is_a_fault(tmp_path):
    (tmp_path / "compile_commands.json").write_text(
        json.dumps(
            [
                {"file": "/source/here.cu", "output": "here.cu.o"},
                {"file": "/source/unlogged.cu", "output": "unlogged.cu.o"},
                {"file": "/source/host.cpp", "output": "host.cpp.o"},
            ]
        )
    )
    for name in ("here.cu.o", "here.cu.o.ptxas", "unlogged.cu.o", "gone.cu.o", "gone.cu.o.ptxas"):
        (tmp_path / name).touch()
    logs, faults = check_kernels.objects_with_logs(tmp_path)
    assert [thing.name for thing in logs] == ["here.cu.o", "unlogged.cu.o"]
    assert faults == [
        f"{tmp_path / 'unlogged.cu.o.ptxas'} is missing: remove its object and build again"
    ]
