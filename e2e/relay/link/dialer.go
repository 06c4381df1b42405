package link

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// lookUps is the number of searches for a dialer. While other connections come and go, the kernel's
// table may leave out a line.
const lookUps = 5

// dialerOf returns the node that has dialled a connection from this machine: the one whose home is
// an argument of the process that has the other end. It returns "" if that process is not a node,
// such as an operator's command, has ended, or cannot be found, as on systems without /proc.
func dialerOf(conn net.Conn, homes map[string]string) (name string) {
	for range lookUps {
		if name = lookUp(conn, homes); name != "" {
			break
		}
	}
	return name
}

func lookUp(conn net.Conn, homes map[string]string) string {
	socket := socketOf(conn.RemoteAddr(), conn.LocalAddr())
	if socket == "" {
		return ""
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return ""
	}
	for _, process := range processes {
		line, err := os.ReadFile(filepath.Join(process, "cmdline"))
		if err != nil { // it has ended
			continue
		}
		name, files := nodeOf(strings.Split(string(line), "\x00"), homes), filepath.Join(process, "fd")
		if name == "" {
			continue
		}
		open, err := os.ReadDir(files)
		if err != nil {
			continue
		}
		for _, file := range open {
			if to, err := os.Readlink(filepath.Join(files, file.Name())); err == nil && to == socket {
				return name
			}
		}
	}
	return ""
}

func nodeOf(args []string, homes map[string]string) string {
	for name, home := range homes { // homes differ
		if slices.Contains(args, home) {
			return name
		}
	}
	return ""
}

// socketOf returns the file of the IPv4 socket with these addresses, as /proc names it, or "".
func socketOf(local, remote net.Addr) string {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return ""
	}
	from, to := hexOf(local), hexOf(remote)
	for line := range strings.Lines(string(table)) {
		// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
		if f := strings.Fields(line); len(f) > 9 && f[1] == from && f[2] == to {
			return "socket:[" + f[9] + "]"
		}
	}
	return ""
}

func hexOf(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || tcp.IP.To4() == nil {
		return ""
	}
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(tcp.IP.To4()), tcp.Port)
}
