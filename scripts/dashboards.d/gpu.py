"""Dashboard *GPU & energy*: what the devices of a run's nodes do, draw and suffer."""

from panels import GPU_NAME, MOST, ONE_GPU, ONE_RANK, ONE_RUN, Dashboard, Panel, Query, growing, highest, lowest, stat

GPU = Dashboard(
    "trainspan-gpu",
    "GPU & energy",
    "What the devices do, what they draw, and whether they are well: those of the nodes of one run.",
    ("run", "rank"),
    (
        stat(
            "Energy of the work",
            "Drawn by the GPUs while the ranks trained, in the time shown. Idle GPUs and the time before the first "
            "step are not in it.",
            f"sum(increase(training_energy_joules_total{{{ONE_RUN}}}[$__range]))",
            "joule",
            width=5,
        ),
        stat(
            "Energy of a step",
            "Of all ranks together, over the last five minutes. A change without a change of the step time: another "
            "clock, another precision, or a GPU that is throttled.",
            f"job:training_energy:joules_per_step_5m{{{ONE_RUN}}}",
            "joule",
            width=5,
        ),
        stat(
            "Energy of a token",
            "Of all ranks together, over the last five minutes; padding counts. It compares runs whose batches differ.",
            f"job:training_energy:joules_per_token_5m{{{ONE_RUN}}}",
            "joule",
            width=5,
        ),
        stat(
            "Carbon",
            "The energy of the work times TRAINSPAN_CARBON_G_PER_KWH, in grams. Empty: the job was not told that "
            "number.",
            f"sum(increase(training_carbon_grams_total{{{ONE_RUN}}}[$__range]))",
            width=4,
        ),
        stat(
            "GPUs that have failed",
            "Zero is right. Such a GPU answers nothing: take its node out, and look at its XID errors below.",
            f'count(hw_status{{{ONE_RUN},hw_type="gpu",hw_state="failed"}} == 1) or vector(0)',
            width=5,
        ),
        Panel(
            "Power by phase",
            "timeseries",
            "What the GPUs of all ranks draw in each phase, on average. Much in `data_wait` or `other`: the devices "
            "are kept waiting at full price.",
            (
                Query(
                    f"sum by (training_phase) (job:training_power:watts_5m{{{ONE_RUN}}})",
                    "{{training_phase}}",
                ),
            ),
            "watt",
            stacked=True,
        ),
        Panel(
            "Device time by phase",
            "timeseries",
            "Seconds of device work in each phase, a second. The sum far below 1: the device waits, see data_wait.",
            (
                Query(
                    f"sum by (training_phase) (rate(training_phase_duration_seconds_sum"
                    f'{{{ONE_RANK},training_clock="device"}}[$__rate_interval]))'
                    f" / on () group_left () count(count by (training_rank) (training_steps_total{{{ONE_RANK}}}))",
                    "{{training_phase}}",
                ),
            ),
            "percentunit",
            stacked=True,
        ),
        Panel(
            "Allocator memory",
            "timeseries",
            "Memory of torch's allocator by rank and state. `reserved` far above `allocated`: fragmentation, try "
            "expandable_segments. Ever growing: a tensor is kept over steps.",
            (
                Query(
                    highest(
                        f"training_allocator_memory_usage_bytes{{{ONE_RANK}}}", " by (training_allocator_memory_state)"
                    ),
                    "rank {{training_rank}} {{training_allocator_memory_state}}",
                ),
                Query(highest(f"training_allocator_memory_peak_bytes{{{ONE_RANK}}}"), "rank {{training_rank}} peak"),
            ),
            "bytes",
        ),
        Panel(
            "Allocator retries and out of memory",
            "timeseries",
            "Zero is right. Retries flush the cache and stall the device: the batch is at the edge of the memory. Out "
            "of memory: make the batch or the activations smaller.",
            (
                Query(
                    growing(f"training_allocator_retries_total{{{ONE_RANK}}}"),
                    "rank {{training_rank}} retries",
                ),
                Query(
                    growing(f"training_allocator_ooms_total{{{ONE_RANK}}}"),
                    "rank {{training_rank}} out of memory",
                ),
            ),
        ),
        Panel(
            "GPU utilisation",
            "timeseries",
            "Share of time in which any kernel ran. It says that the GPU was not idle, not that it was used well: a "
            "hung collective shows 100 %. Of many GPUs the idlest are shown.",
            (Query(lowest(f'hw_gpu_utilization_ratio{{{ONE_GPU},hw_gpu_task="general"}}'), GPU_NAME),),
            "percentunit",
            maximum=1,
        ),
        Panel(
            "Memory in use",
            "timeseries",
            "Of each GPU, by whomever it is used, and what it has. Above the allocator's reserve: the context, NCCL's "
            "buffers, or another process. Of many GPUs the fullest are shown.",
            (
                Query(highest(f"hw_gpu_memory_usage_bytes{{{ONE_GPU}}}"), GPU_NAME),
                Query(f"min by (hw_model) (hw_gpu_memory_limit_bytes{{{ONE_GPU}}})", "{{hw_model}} has"),
            ),
            "bytes",
        ),
        Panel(
            "Share of memory in use",
            "timeseries",
            "The same as a share of each GPU's own memory. Near 1 on one GPU only: work is not spread evenly.",
            (Query(highest(f"hw_gpu_memory_utilization_ratio{{{ONE_GPU}}}"), GPU_NAME),),
            "percentunit",
            maximum=1,
        ),
        Panel(
            "Power",
            "timeseries",
            "What each board draws. Low in the middle of a run: the GPU waits. One lower than its peers: throttled or "
            "starved. Of many GPUs the lowest are shown.",
            (Query(lowest(f"hw_power_watts{{{ONE_GPU}}}"), GPU_NAME),),
            "watt",
        ),
        Panel(
            "Energy",
            "bargauge",
            "What each board has drawn in the time shown, whatever for; of many GPUs those that drew most.",
            (Query(f"topk ({MOST}, increase(hw_energy_joules_total{{{ONE_GPU}}}[$__range]))", GPU_NAME),),
            "joule",
        ),
        Panel(
            "Temperature",
            "timeseries",
            "Of each GPU and of its memory. One hotter than its peers will be throttled: see to its cooling.",
            (Query(highest(f"hw_temperature_celsius{{{ONE_GPU}}}"), GPU_NAME + " {{hw_sensor_location}}"),),
            "celsius",
        ),
        Panel(
            "Clock of the multiprocessors",
            "timeseries",
            "One that is slower than its peers makes every step of all ranks longer; the reason is beside it.",
            (Query(lowest(f'hw_gpu_speed_hertz{{{ONE_GPU},hw_gpu_clock="sm"}}'), GPU_NAME),),
            "hertz",
        ),
        Panel(
            "Slowed by",
            "timeseries",
            "GPUs slowed for each reason. `sw_power_cap` is usual under load; `hw_thermal`, `hw_slowdown` and "
            "`hw_power_brake` are cooling or power supply.",
            (
                Query(
                    f"sum by (hw_gpu_throttle_reason) (hw_gpu_throttled_ratio{{{ONE_GPU}}})",
                    "{{hw_gpu_throttle_reason}}",
                ),
            ),
        ),
        Panel(
            "Links",
            "timeseries",
            "Bytes a second over PCIe and NVLink, of all GPUs together. PCIe near its limit: copies from the host, or "
            "collectives that do not go over NVLink.",
            (
                Query(
                    f"sum by (hw_gpu_link, network_io_direction) (rate(hw_gpu_io_bytes_total{{{ONE_GPU}}}"
                    f"[$__rate_interval]))",
                    "{{hw_gpu_link}} {{network_io_direction}}",
                ),
            ),
            "Bps",
        ),
        Panel(
            "Errors",
            "timeseries",
            "Since the relay began. Corrected ones are usual, uncorrected ones are not. The number of an XID: look it "
            "up in NVIDIA's catalogue; 48, 63, 64, 79, 94 and 95 ask for the node to be drained.",
            (Query(highest(f"hw_errors_total{{{ONE_GPU}}}"), GPU_NAME + " {{error_type}}"),),
        ),
    ),
)
