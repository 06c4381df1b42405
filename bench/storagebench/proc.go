package storagebench

import (
	"bufio"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// procIO is what this process read and wrote with system calls (proc(5), /proc/self/io), from the
// page cache or not. It is zero if there is no such file.
type procIO struct{ read, written, reads int64 }

func readProcIO() (p procIO) {
	f, err := os.Open("/proc/self/io")
	if err != nil {
		return p
	}
	defer f.Close()
	fields := map[string]*int64{"rchar": &p.read, "wchar": &p.written, "syscr": &p.reads}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		if to := fields[name]; to != nil {
			*to, _ = strconv.ParseInt(value, 10, 64)
		}
	}
	return p
}

// diskBytes is the size of all files below dir.
func diskBytes(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // a file that a compaction removed meanwhile has no bytes
		}
		if info, err := d.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	return n
}
