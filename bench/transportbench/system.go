package transportbench

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// ticks is the number of units in /proc/stat for a second (USER_HZ, on all architectures of Linux
// that Go runs on).
const ticks = 100

// machineCPU returns the seconds that all processors have worked, in threads of the kernel and in
// interrupts, too; false where there is no /proc/stat. Its resolution is a hundredth.
func machineCPU() (float64, bool) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, false
	}
	return parseStat(text)
}

// parseStat reads the first line (proc_stat(5)): user, nice, system, idle, iowait, irq, softirq.
// What follows is not this machine's work.
func parseStat(text []byte) (float64, bool) {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	words := strings.Fields(string(line))
	if len(words) < 8 || words[0] != "cpu" {
		return 0, false
	}
	sum := 0
	for i, w := range words[1:8] {
		n, err := strconv.Atoi(w)
		if err != nil {
			return 0, false
		}
		if i != 3 && i != 4 {
			sum += n
		}
	}
	return float64(sum) / ticks, true
}

// firstLine returns that of a file of the kernel, or "".
func firstLine(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

func kernelRelease() string { return firstLine("/proc/sys/kernel/osrelease") }

// loadAverage is that of the last minute; 0 where it is not known.
func loadAverage() float64 {
	word, _, _ := strings.Cut(firstLine("/proc/loadavg"), " ")
	load, err := strconv.ParseFloat(word, 64)
	if err != nil {
		return 0
	}
	return load
}
