/* What is in use of a card's memory, by NVML, which comes with the driver: the driver's own calls
 * say it of the whole card only, and not before a context is there. */
#ifndef DEVICE_CUDA_NVML_H
#define DEVICE_CUDA_NVML_H

#include <stdbool.h>
#include <stdint.h>

struct cuda_nvml;

/* For the card at that PCI address; NULL where NVML is not there or does not know the card. */
struct cuda_nvml *cuda_nvml_open(const char *pci_bus_id);
void cuda_nvml_close(struct cuda_nvml **nvml);

/* Of the card, by all processes; false if NVML does not say. */
bool cuda_nvml_used(struct cuda_nvml *nvml, uint64_t *used_bytes, uint64_t *free_bytes);
/* By this process; 0 if NVML does not say, as in a container that has its own process numbers. */
uint64_t cuda_nvml_process_bytes(struct cuda_nvml *nvml);

#endif
