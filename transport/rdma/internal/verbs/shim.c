//go:build cgo && linux && rdma

// libibverbs is opened at run time, so that the program starts without it. The system's headers are
// included first. The declarations of verbs.h are hidden, so that the linker does not look for them.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <linux/types.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#pragma GCC visibility push(hidden)
#include <infiniband/verbs.h>
#pragma GCC visibility pop

#undef ibv_reg_mr
#undef ibv_query_port

#include "shim.h"

#define FUNCTIONS(do) \
	do(get_device_list) do(free_device_list) do(get_device_name) do(open_device) do(close_device) do(query_device) \
	do(query_port) do(create_comp_channel) do(destroy_comp_channel) do(create_cq) do(destroy_cq) do(get_cq_event) \
	do(ack_cq_events) do(alloc_pd) do(dealloc_pd) do(reg_mr) do(dereg_mr) do(create_srq) do(destroy_srq) \
	do(create_qp) do(modify_qp) do(destroy_qp) do(wc_status_str)

#define DECLARE(name) __typeof__(&ibv_##name) name;
static struct {
	FUNCTIONS(DECLARE)
	__typeof__(&_ibv_query_gid_ex) query_gid_ex;
} f;

int sv_load(char *why, size_t room) {
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		snprintf(why, room, "%s", dlerror());
		return -1;
	}
#define FIND(name) \
	if (!(f.name = (__typeof__(f.name))dlsym(library, "ibv_" #name))) { \
		snprintf(why, room, "libibverbs.so.1 has no ibv_" #name); \
		return -1; \
	}
	FUNCTIONS(FIND)
	f.query_gid_ex = (__typeof__(f.query_gid_ex))dlsym(library, "_ibv_query_gid_ex");
	if (!f.query_gid_ex) {
		snprintf(why, room, "libibverbs.so.1 has no _ibv_query_gid_ex: it is older than rdma-core 32");
		return -1;
	}
	return 0;
}

// A verb that fails sets errno, or returns it; some libraries do neither.
static int failed(void) { return errno ? errno : EIO; }

// The tables of objects. A handle is generation << 12 | index; generations begin at 1. The lock
// guards used and generation; Go ensures that no object is used while it is closed.
enum { INDEX_BITS = 12, DEVICES = 16, QUEUES = 1 << INDEX_BITS, GENERATIONS = (1 << (32 - INDEX_BITS)) - 1 };

struct device {
	uint32_t generation;
	bool used;
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
};

struct queue {
	uint32_t generation;
	bool used;
	struct ibv_pd *pd;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr[SV_REGIONS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct device devices[DEVICES];
static struct queue queues[QUEUES];

#define TAKE(table, size, found, handle) \
	do { \
		pthread_mutex_lock(&lock); \
		for (uint32_t i = 0; i < (size) && !(found); i++) \
			if (!(table)[i].used) { \
				uint32_t next = (table)[i].generation % GENERATIONS + 1; \
				memset(&(table)[i], 0, sizeof (table)[i]); \
				(table)[i].generation = next, (table)[i].used = true; \
				*(handle) = next << INDEX_BITS | i, (found) = &(table)[i]; \
			} \
		pthread_mutex_unlock(&lock); \
	} while (0)

#define GET(table, size, handle) \
	({ \
		uint32_t index = (handle) & ((1 << INDEX_BITS) - 1), generation = (handle) >> INDEX_BITS; \
		pthread_mutex_lock(&lock); \
		__typeof__(&(table)[0]) found = \
			index < (size) && (table)[index].used && (table)[index].generation == generation ? &(table)[index] : NULL; \
		pthread_mutex_unlock(&lock); \
		found; \
	})

#define GIVE_BACK(entry) \
	do { \
		pthread_mutex_lock(&lock); \
		(entry)->used = false; \
		pthread_mutex_unlock(&lock); \
	} while (0)

#define DEVICE(d, handle) struct device *d = GET(devices, DEVICES, handle); if (!d) return ESTALE
#define QUEUE(q, handle) struct queue *q = GET(queues, QUEUES, handle); if (!q) return ESTALE

int sv_devices(sv_info *out, int room) {
	int count = 0;
	errno = 0;
	struct ibv_device **list = f.get_device_list(&count);
	if (!list) return -failed(); // ENOSYS: the kernel has no InfiniBand
	if (count > room) count = room;
	for (int i = 0; i < count; i++) {
		memset(&out[i], 0, sizeof out[i]);
		snprintf(out[i].name, SV_NAME, "%s", f.get_device_name(list[i]));
		struct ibv_context *c = f.open_device(list[i]);
		struct ibv_device_attr attr;
		out[i].ports = 1; // for a device that cannot be opened: sv_port_of reports why
		if (c && f.query_device(c, &attr) == 0) out[i].ports = attr.phys_port_cnt;
		if (c) f.close_device(c);
	}
	f.free_device_list(list);
	return count;
}

static int open_context(const char *name, struct ibv_context **out) {
	int count = 0;
	errno = 0;
	*out = NULL;
	struct ibv_device **list = f.get_device_list(&count);
	if (!list) return failed();
	int err = ENODEV;
	for (int i = 0; i < count; i++)
		if (!strcmp(f.get_device_name(list[i]), name)) {
			errno = 0;
			*out = f.open_device(list[i]);
			err = *out ? 0 : failed();
		}
	f.free_device_list(list);
	return err;
}

static int query_port(struct ibv_context *c, int port, struct ibv_port_attr *attr) {
	memset(attr, 0, sizeof *attr);
	struct verbs_context *v = verbs_get_ctx_op(c, query_port); // the macro ibv_query_port, by hand
	if (v) return v->query_port(c, port, attr, sizeof *attr);
	return f.query_port(c, port, (struct _compat_ibv_port_attr *)attr);
}

int sv_port_of(const char *name, int port, sv_port *out) {
	struct ibv_context *c;
	memset(out, 0, sizeof *out);
	int err = open_context(name, &c);
	if (err) return err;
	struct ibv_port_attr attr;
	errno = 0;
	if (query_port(c, port, &attr)) {
		err = failed();
		f.close_device(c);
		return err;
	}
	out->state = attr.state, out->lid = attr.lid;
	out->mtu = 128 << attr.active_mtu;
	out->infiniband = attr.link_layer == IBV_LINK_LAYER_INFINIBAND;
	for (int i = 0; i < attr.gid_tbl_len && out->gids < SV_GIDS; i++) {
		struct ibv_gid_entry entry;
		if (f.query_gid_ex(c, port, i, &entry, 0, sizeof entry)) continue; // an empty entry
		if (entry.gid_type != (out->infiniband ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V2)) continue;
		out->gid[out->gids].index = i;
		memcpy(out->gid[out->gids++].raw, &entry.gid, 16);
	}
	f.close_device(c);
	return 0;
}

int sv_open(const char *name, int cqes, uint32_t *handle, int *channel_fd, int *made) {
	struct device *d = NULL;
	TAKE(devices, DEVICES, d, handle);
	if (!d) return EMFILE;
	int err = open_context(name, &d->context);
	if (err) {
		GIVE_BACK(d);
		return err;
	}
	struct ibv_device_attr attr;
	errno = 0;
	if (f.query_device(d->context, &attr)) goto fail;
	if (cqes > attr.max_cqe) cqes = attr.max_cqe;
	errno = 0;
	if (!(d->channel = f.create_comp_channel(d->context))) goto fail;
	if (!(d->cq = f.create_cq(d->context, cqes, NULL, d->channel, 0))) goto fail;
	*channel_fd = d->channel->fd, *made = cqes;
	return 0;
fail:
	err = failed();
	sv_device_close(*handle);
	return err;
}

// Objects already destroyed are skipped, so a call after a failure continues.
#define DESTROY(what, verb) \
	if (what) { \
		errno = 0; \
		int err = verb(what); \
		if (err) return err > 0 ? err : failed(); \
		(what) = NULL; \
	}

int sv_device_close(uint32_t device) {
	DEVICE(d, device);
	DESTROY(d->cq, f.destroy_cq);
	DESTROY(d->channel, f.destroy_comp_channel);
	DESTROY(d->context, f.close_device);
	GIVE_BACK(d);
	return 0;
}

int sv_poll(uint32_t device, sv_completion *out, int room, int *n) {
	DEVICE(d, device);
	struct ibv_wc wc[32];
	*n = ibv_poll_cq(d->cq, room < 32 ? room : 32, wc);
	if (*n < 0) return EIO;
	for (int i = 0; i < *n; i++)
		out[i] = (sv_completion){wc[i].wr_id, wc[i].status, ntohl(wc[i].imm_data), wc[i].byte_len};
	for (int i = 0; i < *n; i++) // whatever else it is: a write has no kind of work request of its own
		if (wc[i].status == IBV_WC_SUCCESS && wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM) out[i].wr_id |= 1u << 31;
	return 0;
}

int sv_arm(uint32_t device) {
	DEVICE(d, device);
	return ibv_req_notify_cq(d->cq, 0);
}

// Takes one event and acknowledges it, or returns EAGAIN.
int sv_event(uint32_t device) {
	DEVICE(d, device);
	struct ibv_cq *cq;
	void *context;
	errno = 0;
	if (f.get_cq_event(d->channel, &cq, &context)) return failed();
	f.ack_cq_events(cq, 1);
	return 0;
}

int sv_queue(uint32_t device, int sends, int receives, uint32_t *handle, uint32_t *qpn, const char **what) {
	DEVICE(d, device);
	struct queue *q = NULL;
	TAKE(queues, QUEUES, q, handle);
	if (!q) return *what = "queues", EMFILE;
	errno = 0;
	*what = "ibv_alloc_pd";
	if (!(q->pd = f.alloc_pd(d->context))) goto fail;
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = receives, .max_sge = 1}};
	*what = "ibv_create_srq";
	if (!(q->srq = f.create_srq(q->pd, &srq))) goto fail;
	struct ibv_qp_init_attr qp = {.send_cq = d->cq, .recv_cq = d->cq, .srq = q->srq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = sends, .max_send_sge = 1}};
	*what = "ibv_create_qp";
	if (!(q->qp = f.create_qp(q->pd, &qp))) goto fail;
	*qpn = q->qp->qp_num;
	return 0;
fail:;
	int err = failed();
	const char *ignored;
	sv_queue_close(*handle, &ignored);
	return err;
}

int sv_region(uint32_t queue, int at, void *from, size_t length, int remote, uint32_t *lkey, uint32_t *rkey) {
	QUEUE(q, queue);
	errno = 0;
	q->mr[at] = f.reg_mr(q->pd, from, length, IBV_ACCESS_LOCAL_WRITE | (remote ? IBV_ACCESS_REMOTE_WRITE : 0));
	if (!q->mr[at]) return failed();
	*lkey = q->mr[at]->lkey, *rkey = q->mr[at]->rkey;
	return 0;
}

static enum ibv_mtu mtu_of(int bytes) {
	enum ibv_mtu m = IBV_MTU_256;
	while (m < IBV_MTU_4096 && 128 << m < bytes) m++;
	return m;
}

int sv_connect(uint32_t queue, const sv_remote *r, const char **what) {
	QUEUE(q, queue);
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = r->port, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	*what = "INIT";
	int err = f.modify_qp(q->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (err) return err;
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = mtu_of(r->mtu), .dest_qp_num = r->qpn,
		.rq_psn = r->remote_psn, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.is_global = r->global, .port_num = r->port, .dlid = r->lid,
			.grh = {.sgid_index = r->gid_index, .hop_limit = 64}}};
	memcpy(&rtr.ah_attr.grh.dgid, r->gid, 16);
	*what = "RTR";
	err = f.modify_qp(q->qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (err) return err;
	// timeout 14: 4.096 µs · 2^14 = 67 ms. retry_cnt is below 7: Soft-RoCE treats 7 as infinite,
	// and a dead peer would never be detected.
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 6, .rnr_retry = 6,
		.sq_psn = r->local_psn, .max_rd_atomic = 1};
	*what = "RTS";
	return f.modify_qp(q->qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int sv_receive(uint32_t queue, const uint64_t *ids, const uint64_t *addresses, uint32_t length, uint32_t lkey, int n) {
	QUEUE(q, queue);
	for (int i = 0; i < n; i++) {
		struct ibv_sge sge = {addresses[i], length, lkey};
		struct ibv_recv_wr wr = {.wr_id = ids[i], .sg_list = &sge, .num_sge = 1}, *bad;
		int err = ibv_post_srq_recv(q->srq, &wr, &bad);
		if (err) return err;
	}
	return 0;
}

int sv_send(uint32_t queue, uint64_t from, uint32_t length, uint32_t lkey, uint64_t wr_id) {
	QUEUE(q, queue);
	struct ibv_sge sge = {from, length, lkey};
	struct ibv_send_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED}, *bad;
	return ibv_post_send(q->qp, &wr, &bad);
}

int sv_writes(uint32_t queue, uint32_t lkey, const sv_write *w, int n) {
	QUEUE(q, queue);
	struct ibv_sge sge[32];
	struct ibv_send_wr wr[32], *bad;
	if (n < 1 || n > 32) return EINVAL;
	for (int i = 0; i < n; i++) {
		sge[i] = (struct ibv_sge){w[i].from, w[i].length, lkey};
		wr[i] = (struct ibv_send_wr){.wr_id = w[i].wr_id, .next = i + 1 < n ? &wr[i + 1] : NULL, .sg_list = &sge[i], .num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = w[i].quiet ? 0 : IBV_SEND_SIGNALED, .imm_data = htonl(w[i].immediate),
			.wr.rdma = {w[i].to, w[i].key}};
	}
	return ibv_post_send(q->qp, wr, &bad);
}

int sv_break(uint32_t queue) {
	QUEUE(q, queue);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	return f.modify_qp(q->qp, &attr, IBV_QP_STATE);
}

// The order matters: an object in use by another returns EBUSY.
int sv_queue_close(uint32_t queue, const char **what) {
	QUEUE(q, queue);
	*what = "ibv_destroy_qp";
	DESTROY(q->qp, f.destroy_qp);
	*what = "ibv_destroy_srq";
	DESTROY(q->srq, f.destroy_srq);
	*what = "ibv_dereg_mr";
	for (int i = 0; i < SV_REGIONS; i++) DESTROY(q->mr[i], f.dereg_mr);
	*what = "ibv_dealloc_pd";
	DESTROY(q->pd, f.dealloc_pd);
	GIVE_BACK(q);
	return 0;
}

const char *sv_status(int status) { return f.wc_status_str(status); }
