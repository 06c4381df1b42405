// Package ports hands out TCP ports of loopback to what is started as a process, or binds its ports
// itself as CometBFT does.
//
//	below the kernel's own range ──► blocks of numbers ──► a lock file each ──► Ports: bound until Release
//
// A block's lock is held until this process ends, so other tests and networks on this machine
// choose other ports even after Release. Where a listener can be handed over, as in one process,
// that is better still.
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

// The numbers lie below Linux' range for outgoing connections (net.ipv4.ip_local_port_range, 32768
// and up): no connection of anybody's takes such a port between the moment it is let go here and
// the moment the node binds it.
const (
	first, last = 20000, 32000

	// A block has so many ports, and as many beside them: a node's transport listens on its p2p
	// port + 10, unless it is told otherwise.
	transportOffset = 10
	blockSize       = 2 * transportOffset
	blocks          = (last - first) / blockSize
)

// Ports are TCP ports on loopback that are this process's until it ends.
type Ports struct {
	numbers []int
	held    []net.Listener // until Release
}

// taken are the blocks that this process has locked.
var taken struct {
	mu    sync.Mutex
	files map[int]*os.File // by block; an open file is a held lock
	next  []int            // numbers of the newest block that nobody has yet
}

// Hold finds n ports and binds them, until Release. A number that somebody else has bound is passed
// over, and the next one tried.
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

// lockBlock locks a block that no process has, and makes its numbers the next ones. taken.mu is
// held.
func lockBlock() error {
	dir := filepath.Join(os.TempDir(), "starling-ports")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	_ = os.Chmod(dir, 0o777|os.ModeSticky) // other users' tests lock here, too
	from := rand.IntN(blocks)
	for i := range blocks {
		block := (from + i) % blocks
		if taken.files[block] != nil {
			continue
		}
		path := filepath.Join(dir, fmt.Sprint(first+block*blockSize))
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
		if errors.Is(err, os.ErrPermission) {
			continue // another user's, with another umask
		}
		if err != nil {
			return err
		}
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			_ = file.Close()
			continue // another process's
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

// Release lets the ports go, right before the process that is to bind them starts; Hold gives them
// to nobody else. A second call does nothing.
func (p *Ports) Release() {
	for _, listener := range p.held {
		_ = listener.Close()
	}
	p.held = nil
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
