// Package transportbench measures the cost of moving responses between two processes: over plain
// sockets, over transport/tcp (TLS), and over transport/rdma if there is a device.
//
//	parent ─┬─ server  ─ a listener for each path, responds from memory
//	        ├─ client  ─ 1 to 8 peers for each path, some concurrent calls for each peer
//	        └─ reference: C over libibverbs alone, the cost of the device itself
//
// Paths take turns. CPU time is measured for each process and for the whole machine, because
// Soft-RoCE works in kernel threads, which belong to no process. With Options.Guest, everything
// runs in the VM of transport/rdma/guest, which has two Soft-RoCE devices.
package transportbench
