// Package ports reserves TCP ports on loopback for child processes, or for servers like CometBFT
// that bind their ports themselves.
//
//	below the kernel's own range ──► blocks of numbers ──► one lock file each ──► Ports: bound until Release
//
// The lock of a block is held until this process ends, so other tests and networks on this machine
// choose other ports even after Release. If a listener can be passed on, as within one process, do
// that instead.
package ports

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// The numbers are below Linux's range for outgoing connections (net.ipv4.ip_local_port_range, 32768
// and up), so no connection takes a port between its release here and the moment the node binds it.
const (
	first, last = 20000, 32000

	// A block has transportOffset ports, each with a companion port: a node's transport listens on
	// its p2p port + 10 by default.
	transportOffset = 10
	blockSize       = 2 * transportOffset
	blocks          = (last - first) / blockSize
)

// Ports are TCP ports on loopback that are reserved for this process until it ends.
type Ports struct {
	numbers []int
	held    []net.Listener // until Release
}

// taken holds the blocks that this process has locked.
var taken struct {
	mu    sync.Mutex
	files map[int]*os.File // by block; an open file is a held lock
	next  []int            // unused numbers of the newest block
}

// Hold finds n ports and binds them until Release. It skips numbers that are already bound.
func Hold(n int) (*Ports, error) {
	taken.mu.Lock()
	defer taken.mu.Unlock()
	p := &Ports{}
	for len(p.numbers) < n {
		if len(taken.next) == 0 {
			if err := lockBlock(); err != nil {
				p.Release()
				return nil, err
			}
		}
		number := taken.next[0]
		taken.next = taken.next[1:]
		listener, err := listen(number)
		if err != nil {
			continue
		}
		beside, err := listen(number + transportOffset)
		if err != nil {
			_ = listener.Close()
			continue
		}
		p.numbers, p.held = append(p.numbers, number), append(p.held, listener, beside)
	}
	return p, nil
}

func listen(number int) (net.Listener, error) {
	return new(net.ListenConfig).Listen(context.Background(), "tcp", address(number))
}

// lockBlock locks a block that no process has locked, and makes its numbers the next ones. The
// caller holds taken.mu.
func lockBlock() error {
	dir := filepath.Join(os.TempDir(), "starling-ports")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	_ = os.Chmod(dir, 0o777|os.ModeSticky) // tests of other users lock files here, too
	from := rand.IntN(blocks)
	for i := range blocks {
		block := (from + i) % blocks
		if taken.files[block] != nil {
			continue
		}
		path := filepath.Join(dir, fmt.Sprint(first+block*blockSize))
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
		if errors.Is(err, os.ErrPermission) {
			continue // of another user with another umask
		}
		if err != nil {
			return err
		}
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			_ = file.Close()
			continue // of another process
		}
		if taken.files == nil {
			taken.files = map[int]*os.File{}
		}
		taken.files[block] = file
		for k := range transportOffset {
			taken.next = append(taken.next, first+block*blockSize+k)
		}
		return nil
	}
	return fmt.Errorf("all TCP ports between %d and %d are taken by other tests and networks: see %q", first, last, dir)
}

// Number returns port i.
func (p *Ports) Number(i int) int { return p.numbers[i] }

// Address returns port i as host:port.
func (p *Ports) Address(i int) string { return address(p.numbers[i]) }

// Release releases the ports, right before the process that is to bind them starts. Hold does not
// return them again. A second call does nothing.
func (p *Ports) Release() {
	for _, listener := range p.held {
		_ = listener.Close()
	}
	p.held = nil
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
