// Package guest has the end-to-end tests that need RDMA: networks of processes in the VM of `make
// test-rdma`, which has two Soft-RoCE devices. Elsewhere they are skipped.
//
//	network namespaces      node1        node2        node3          the kernel's first namespace
//	  TCP, through hub      10.7.0.1     10.7.0.2     10.7.0.3
//	  RDMA                  rxe0         rxe1         rxe0           rxe0 ═══ cable ═══ rxe1
//
// Devices belong to the first namespace, and processes of all namespaces can use them. So TCP and
// RDMA take different routes between the same addresses, and a cut cable breaks only RDMA channels.
package guest
