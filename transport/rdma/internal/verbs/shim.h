// The interface between Go and libibverbs. It passes handles, not pointers: index and generation.
#include <stddef.h>
#include <stdint.h>

enum { SV_REGIONS = 3, SV_NAME = 64, SV_GIDS = 32 };

typedef struct {
	char name[SV_NAME];
	int ports;
} sv_info;

typedef struct {
	int state, mtu, infiniband, gids;
	uint16_t lid;
	struct {
		int index;
		uint8_t raw[16];
	} gid[SV_GIDS];
} sv_port;

typedef struct {
	uint64_t wr_id;
	int status;
	uint32_t immediate, length;
} sv_completion;

typedef struct {
	uint64_t from, to, wr_id;
	uint32_t length, key, immediate, quiet;
} sv_write;

typedef struct {
	uint8_t gid[16];
	uint16_t lid;
	uint32_t qpn, remote_psn, local_psn;
	int mtu, port, gid_index, global;
} sv_remote;

// Returns 0, or -1 with the reason.
int sv_load(char *why, size_t room);
// Returns the number of devices; negative: an errno.
int sv_devices(sv_info *out, int room);
int sv_port_of(const char *name, int port, sv_port *out);

// All of these return 0 or an errno; ESTALE for a handle whose object was destroyed.
int sv_open(const char *name, int cqes, uint32_t *handle, int *channel_fd, int *made);
int sv_device_close(uint32_t device);
int sv_poll(uint32_t device, sv_completion *out, int room, int *n);
int sv_arm(uint32_t device);
int sv_event(uint32_t device);

int sv_queue(uint32_t device, int sends, int receives, uint32_t *handle, uint32_t *qpn, const char **what);
int sv_region(uint32_t queue, int at, void *from, size_t length, int remote, uint32_t *lkey, uint32_t *rkey);
int sv_connect(uint32_t queue, const sv_remote *remote, const char **what);
int sv_receive(uint32_t queue, const uint64_t *ids, const uint64_t *addresses, uint32_t length, uint32_t lkey, int n);
int sv_send(uint32_t queue, uint64_t from, uint32_t length, uint32_t lkey, uint64_t wr_id);
int sv_writes(uint32_t queue, uint32_t lkey, const sv_write *w, int n);
int sv_break(uint32_t queue);
int sv_queue_close(uint32_t queue, const char **what);
const char *sv_status(int status);
