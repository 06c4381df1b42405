package treebench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// process is a child, seen from the parent. It runs while it is asked something and is stopped otherwise.
type process struct {
	name    string
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	answers *json.Decoder
	stderr  head
	ended   bool
}

// start runs this program as a child. It is killed when ctx ends, and never outlives this process.
func start(ctx context.Context, b begin) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("this program does not find itself to start it again for %s: %w", b.Name, err)
	}
	b.Dir = filepath.Join(b.Dir, b.Name)
	if err := os.MkdirAll(b.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("no folder for %s: %w", b.Name, err)
	}
	p := &process{name: b.Name, cmd: exec.CommandContext(ctx, self, ChildCommand)}
	p.cmd.SysProcAttr = attributes()
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = 10 * time.Second
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.answers = json.NewDecoder(stdout)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("the process for %s did not start: %w", b.Name, err)
	}
	if _, err := p.exchange(b); err != nil {
		p.end()
		return nil, err
	}
	return p, nil
}

// ask lets the child do something, and nothing else before and after.
func (p *process) ask(r request) (answer, error) {
	proceed(p.cmd.Process)
	return p.exchange(r)
}

func (p *process) exchange(message any) (a answer, err error) {
	if err := json.NewEncoder(p.stdin).Encode(message); err != nil {
		return a, p.died(err)
	}
	if err := p.answers.Decode(&a); err != nil {
		return a, p.died(err)
	}
	freeze(p.cmd.Process)
	if a.Error != "" {
		return a, fmt.Errorf("%s: %s", p.name, a.Error)
	}
	return a, nil
}

// died tells why a child has no answer.
func (p *process) died(cause error) error {
	p.ended = true
	_ = p.stdin.Close() // it is gone
	if err := p.cmd.Wait(); err != nil {
		cause = err
	}
	hint := ""
	if state := p.cmd.ProcessState; state != nil && strings.Contains(state.String(), "killed") {
		hint = "; if memory ran out, ask for fewer --keys"
	}
	if text := p.stderr.String(); text != "" {
		hint += "\n" + text
	}
	return fmt.Errorf("the process of %s ended early: %w%s", p.name, cause, hint)
}

// end lets the child close its tree and waits for it; what hangs is killed.
func (p *process) end() {
	if p.ended {
		return
	}
	p.ended = true
	proceed(p.cmd.Process)
	_ = p.stdin.Close() // the child ends when it reads that
	giveUp := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer giveUp.Stop()
	_ = p.cmd.Wait() // all was measured: how it ends changes nothing
}

// head keeps the beginning of what a child says on stderr: of a panic that is the part which counts.
type head struct{ b bytes.Buffer }

const headBytes = 4 << 10

func (h *head) Write(b []byte) (int, error) {
	if room := headBytes - h.b.Len(); room > 0 {
		h.b.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

func (h *head) String() string { return strings.TrimSpace(h.b.String()) }
