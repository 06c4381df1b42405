// Package transportbench measures what it costs to move answers between two processes: by plain
// sockets, by transport/tcp (TLS), and by transport/rdma where there is a device.
//
//	parent ─┬─ server  ─ a listener for each path, answers from memory
//	        ├─ client  ─ 1 to 8 peers for each path, some calls under way for each
//	        └─ reference: C over libibverbs alone, what the device itself costs
//
// Paths take turns. CPU time is that of each process, and that of the whole machine, since
// Soft-RoCE works in threads of the kernel that belong to no process. With Options.Guest all of
// this runs in the guest of transport/rdma/guest, where two Soft-RoCE devices are.
package transportbench
