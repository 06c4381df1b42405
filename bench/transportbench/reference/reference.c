// reference: the cost of a device by itself. One process writes with immediate into the memory of
// another, over a reliable connection. Both sleep in their completion channels. Nothing is
// requested, copied, encrypted or checked.
//
//   usage: reference RECEIVER-ADDRESS SENDER-ADDRESS BYTES-OF-A-WRITE WRITES WINDOW
//
// The addresses are those of RoCE v2 devices. It prints a line of JSON: bytes, seconds, the CPU
// seconds of the whole machine meanwhile, and the completion events of the side that had more.
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RECEIVES = 64, PLACES = 8, WARM_UP = 4 };

static void die(const char *format, ...) {
	va_list args;
	va_start(args, format);
	fprintf(stderr, "reference: ");
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	exit(1);
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

// Like MachineCPU in bench/harness/usage.go.
static double machine(void) {
	unsigned long long t[7] = {0};
	FILE *f = fopen("/proc/stat", "r");
	if (!f || fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu", t, t + 1, t + 2, t + 3, t + 4, t + 5, t + 6) < 7)
		die("/proc/stat cannot be read");
	fclose(f);
	return (double)(t[0] + t[1] + t[2] + t[5] + t[6]) / sysconf(_SC_CLK_TCK);
}

// What the two ends exchange over a socket.
struct address {
	union ibv_gid gid;
	uint64_t base;
	uint32_t qpn, psn, rkey;
	int mtu;
};

struct end {
	struct ibv_cq *cq;
	struct ibv_comp_channel *channel;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *memory;
	long events;
	int fd, gid_index;
	struct address self, peer;
};

// find opens the device whose port 1 has this address.
static struct ibv_context *find(struct end *e, const char *text) {
	unsigned char want[16] = {[10] = 0xff, [11] = 0xff};
	if (inet_pton(AF_INET, text, want + 12) != 1 && inet_pton(AF_INET6, text, want) != 1) die("%s is not an address", text);
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	if (!list) die("ibv_get_device_list: %s", strerror(errno));
	for (int i = 0; i < count; i++) {
		struct ibv_context *c = ibv_open_device(list[i]);
		struct ibv_port_attr port;
		if (!c || ibv_query_port(c, 1, &port)) continue;
		for (int g = 0; g < port.gid_tbl_len; g++) {
			struct ibv_gid_entry entry;
			if (ibv_query_gid_ex(c, 1, g, &entry, 0) || entry.gid_type != IBV_GID_TYPE_ROCE_V2) continue;
			if (memcmp(entry.gid.raw, want, 16)) continue;
			e->gid_index = g, e->self.gid = entry.gid, e->self.mtu = port.active_mtu;
			return c;
		}
		ibv_close_device(c);
	}
	die("no RoCE v2 device has the address %s", text);
	return NULL;
}

static void receive(struct end *e) {
	struct ibv_recv_wr wr = {.wr_id = 0}, *bad; // a write with immediate needs no buffer
	int err = ibv_post_srq_recv(e->srq, &wr, &bad);
	if (err) die("ibv_post_srq_recv: %s", strerror(err));
}

static void make(struct end *e, const char *address, size_t bytes, int window) {
	struct ibv_context *c = find(e, address);
	struct ibv_pd *pd = ibv_alloc_pd(c);
	if (!pd) die("ibv_alloc_pd: %s", strerror(errno));
	e->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (e->memory == MAP_FAILED) die("mmap: %s", strerror(errno));
	for (size_t i = 0; i < bytes; i++) e->memory[i] = i * 31;
	e->mr = ibv_reg_mr(pd, e->memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!e->mr) die("ibv_reg_mr: %s", strerror(errno));
	e->channel = ibv_create_comp_channel(c);
	if (!e->channel) die("ibv_create_comp_channel: %s", strerror(errno));
	e->cq = ibv_create_cq(c, RECEIVES + window, NULL, e->channel, 0);
	if (!e->cq) die("ibv_create_cq: %s", strerror(errno));
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = RECEIVES, .max_sge = 1}};
	e->srq = ibv_create_srq(pd, &srq);
	if (!e->srq) die("ibv_create_srq: %s", strerror(errno));
	for (int i = 0; i < RECEIVES; i++) receive(e);
	struct ibv_qp_init_attr qp = {.send_cq = e->cq, .recv_cq = e->cq, .srq = e->srq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = window, .max_send_sge = 1}};
	e->qp = ibv_create_qp(pd, &qp);
	if (!e->qp) die("ibv_create_qp: %s", strerror(errno));
	e->self.qpn = e->qp->qp_num, e->self.psn = (getpid() * 2654435761u) & 0xffffff;
	e->self.base = (uintptr_t)e->memory, e->self.rkey = e->mr->rkey;
}

static void meet(struct end *e, void *mine, void *theirs, size_t n) {
	if (write(e->fd, mine, n) != (ssize_t)n || recv(e->fd, theirs, n, MSG_WAITALL) != (ssize_t)n) die("the other side has ended");
}

static void join(struct end *e) {
	meet(e, &e->self, &e->peer, sizeof e->self);
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = e->self.mtu < e->peer.mtu ? e->self.mtu : e->peer.mtu,
		.dest_qp_num = e->peer.qpn, .rq_psn = e->peer.psn, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = e->peer.gid, .sgid_index = e->gid_index, .hop_limit = 64}}};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 6, .rnr_retry = 6,
		.sq_psn = e->self.psn, .max_rd_atomic = 1};
	int err = ibv_modify_qp(e->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (!err) err = ibv_modify_qp(e->qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (!err) err = ibv_modify_qp(e->qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	if (err) die("ibv_modify_qp: %s", strerror(err));
	char both;
	meet(e, "", &both, 1); // wait until both are ready
}

// next waits for n completions.
static void next(struct end *e, int n) {
	struct ibv_wc wc;
	for (int armed = 0; n > 0;) {
		int got = ibv_poll_cq(e->cq, 1, &wc);
		if (got < 0) die("ibv_poll_cq failed");
		if (got && wc.status) die("a write failed: %s", ibv_wc_status_str(wc.status));
		if (got) {
			n--;
			continue;
		}
		if (!armed) { // poll again: a completion in between raises no event
			if (ibv_req_notify_cq(e->cq, 0)) die("ibv_req_notify_cq: %s", strerror(errno));
			armed = 1;
			continue;
		}
		struct ibv_cq *cq;
		void *context;
		if (ibv_get_cq_event(e->channel, &cq, &context)) die("ibv_get_cq_event: %s", strerror(errno));
		ibv_ack_cq_events(cq, 1);
		e->events++, armed = 0;
	}
}

static void post(struct end *e, int i, uint32_t size) {
	size_t at = (size_t)(i % PLACES) * size;
	struct ibv_sge sge = {(uintptr_t)e->memory + at, size, e->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(i), .wr.rdma = {e->peer.base + at, e->peer.rkey}}, *bad;
	int err = ibv_post_send(e->qp, &wr, &bad);
	if (err) die("ibv_post_send: %s", strerror(err));
}

// run moves count writes. It returns when the last one is complete.
static void run(struct end *e, int sends, uint32_t size, int count, int window) {
	int posted = 0;
	for (int done = 0; done < count; done++) {
		for (; sends && posted < count && posted - done < window; posted++) post(e, posted, size);
		next(e, 1);
		if (!sends) receive(e);
	}
}

int main(int argc, char **argv) {
	if (argc != 6) die("usage: reference RECEIVER-ADDRESS SENDER-ADDRESS BYTES-OF-A-WRITE WRITES WINDOW");
	long size = atol(argv[3]), count = atol(argv[4]), window = atol(argv[5]);
	if (size < 1 || size > 8 << 20 || count < 1 || count > 1 << 24 || window < 1 || window > PLACES) die("a number is out of range");
	int fds[2], status = 0;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds)) die("socketpair: %s", strerror(errno));
	pid_t child = fork();
	if (child < 0) die("fork: %s", strerror(errno));
	int sends = child == 0;
	struct end e = {.fd = fds[sends]};
	close(fds[!sends]);
	make(&e, argv[1 + sends], size * PLACES, window);
	join(&e);
	run(&e, sends, size, WARM_UP, window);
	char both;
	meet(&e, "", &both, 1);
	long before = e.events, theirs;
	double began = now(), used = machine();
	run(&e, sends, size, count, window);
	used = machine() - used;
	double seconds = now() - began;
	long mine = e.events - before;
	meet(&e, &mine, &theirs, sizeof mine); // stay until the other side has finished
	if (sends) exit(0);
	printf("{\"bytes\":%ld,\"seconds\":%.6f,\"machine\":%.2f,\"events\":%ld}\n", size * count, seconds, used, mine > theirs ? mine : theirs);
	fflush(stdout);
	if (waitpid(child, &status, 0) != child || status) die("the sender failed");
	return 0;
}
