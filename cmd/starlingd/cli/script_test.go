package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cometbft/cometbft/p2p"
	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/starling-kv/starling/internal/ports"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/statuspage"
)

// patience limits every wait for a node. It is meant for hangs, not for slow machines.
const patience = 5 * time.Minute

// programVariable makes the test binary run as starlingd, for tests that start it as a process.
const programVariable = "STARLING_TEST_PROGRAM"

// versionVariable sets the newest app version that this program supports.
const versionVariable = "STARLING_TEST_APP_VERSION"

func TestMain(m *testing.M) {
	scryptWork = 10 // 18 by default: a millisecond instead of a second
	healthTimeout, statusTimeout = patience, patience
	buildinfo.RehearsedAppVersion = os.Getenv(versionVariable)
	if os.Getenv(programVariable) != "" {
		program()
	}
	testscript.Main(m, map[string]func(){"starlingd": program})
}

// program is starlingd.
func program() { os.Exit(Run(os.Args[1:], os.Stdout, os.Stderr)) }

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"freeports":   freePortsCmd,
			"waitheight":  waitHeightCmd,
			"listen":      listenCmd,
			"jsonset":     jsonSetCmd,
			"killed":      killedSocketCmd,
			"waitsocket":  waitSocketCmd,
			"status":      statusCmd,
			"term":        termCmd,
			"storagefile": storageFileCmd,
			"waitcheck":   waitCheckCmd,
			"firsthash":   firstHashCmd,

			"waitsnapshots": waitSnapshotsCmd,
			"storagehalves": storageHalvesCmd,
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			examples, err := filepath.Abs("../../../examples/programs")
			if err != nil {
				return err
			}
			env.Setenv("EXAMPLES", examples)
			env.Setenv("GUIDE", filepath.Join(examples, "../../docs/how-to/programs.md"))
			env.Setenv("STARLINGD_CONSENSUS_TIMEOUT_COMMIT", "20ms")
			env.Setenv("STARLINGD_P2P_PEX", "false")
			env.Setenv("STARLINGD_RPC_TIMEOUT_BROADCAST_TX_COMMIT", "5m")
			env.Setenv("STARLINGD_LOG_LEVEL", "consensus:error,state:error,p2p:error,*:info")
			return nil
		},
	})
}

// freeports NAME… sets variables to free loopback ports that no other test uses.
func freePortsCmd(ts *testscript.TestScript, _ bool, names []string) {
	held, err := ports.Hold(len(names))
	ts.Check(err)
	held.Release()
	for i, name := range names {
		ts.Setenv(name, strconv.Itoa(held.Number(i)))
	}
}

// listen NAME occupies a port until the end of the script.
func listenCmd(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { l.Close() })
	ts.Setenv(args[0], strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
}

// killed PATH leaves a unix socket without a listener, as a killed process does.
func killedSocketCmd(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: ts.MkAbs(args[0]), Net: "unix"})
	ts.Check(err)
	l.SetUnlinkOnClose(false)
	ts.Check(l.Close())
}

// waitsocket PATH waits until a process listens on a unix socket.
func waitSocketCmd(ts *testscript.TestScript, _ bool, args []string) {
	for deadline := time.Now().Add(patience); ; {
		conn, err := net.Dial("unix", ts.MkAbs(args[0]))
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("nobody listens on %s: %v", args[0], err)
		}
	}
}

// storagefile HOME PORT[,REPLICA] [OTHER…] assigns all keys to the storage node of a home, at that
// loopback port, and to another replica, in the files of that home and of others.
func storageFileCmd(ts *testscript.TestScript, _ bool, args []string) {
	key, err := p2p.LoadNodeKey(ts.MkAbs(args[0] + "/config/node_key.json"))
	ts.Check(err)
	port, replica, some := strings.Cut(args[1], ",")
	nodes := fmt.Sprintf("%q", fmt.Sprintf("%s@127.0.0.1:%s", key.ID(), port))
	if some {
		nodes += fmt.Sprintf(", %q", replica)
	}
	text := fmt.Sprintf("[[range]]\nfirst = \"\"\nnodes = [%s]\n", nodes)
	for _, home := range append([]string{args[0]}, args[2:]...) {
		ts.Check(os.WriteFile(ts.MkAbs(home+"/config/storage_nodes.toml"), []byte(text), 0o600))
	}
}

// storagehalves KEY HOME1 PORT1 HOME2 PORT2 [OTHER…] assigns the keys below KEY to the storage node
// of HOME1, at that loopback port, and the others to that of HOME2.
func storageHalvesCmd(ts *testscript.TestScript, _ bool, args []string) {
	var text strings.Builder
	for i, first := range []string{"", args[0]} {
		key, err := p2p.LoadNodeKey(ts.MkAbs(args[1+2*i] + "/config/node_key.json"))
		ts.Check(err)
		fmt.Fprintf(&text, "[[range]]\nfirst = %q\nnodes = [\"%s@127.0.0.1:%s\"]\n", first, key.ID(), args[2+2*i])
	}
	for _, home := range append([]string{args[1], args[3]}, args[5:]...) {
		ts.Check(os.WriteFile(ts.MkAbs(home+"/config/storage_nodes.toml"), []byte(text.String()), 0o600))
	}
}

// [!] waitcheck ADDRESS NAME [TEXT] waits until a check of /readyz passes, or fails with !, and has
// the text.
func waitCheckCmd(ts *testscript.TestScript, neg bool, args []string) {
	text := strings.Join(args[2:], " ")
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for deadline := time.Now().Add(patience); ; <-pause.C {
		report, err := askStatusServer(context.Background(), args[0])
		for _, c := range report.Checks {
			if c.Name == args[1] && c.OK != neg && strings.Contains(c.Detail, text) {
				return
			}
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s: %+v, %v", args[0], report, err)
		}
	}
}

// waitsnapshots ADDRESS N waits until the node serves N snapshots. The snapshot of the state that
// it started with counts; it is not stored.
func waitSnapshotsCmd(ts *testscript.TestScript, _ bool, args []string) {
	least, err := strconv.Atoi(args[1])
	ts.Check(err)
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for deadline := time.Now().Add(patience); ; <-pause.C {
		var status statuspage.Status
		answer, err := http.Get("http://" + args[0] + "/status.json")
		if err == nil {
			err = json.NewDecoder(answer.Body).Decode(&status)
			answer.Body.Close()
		}
		if len(status.Snapshots) >= least {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s has snapshots of %v: %v", args[0], status.Snapshots, err)
		}
	}
}

// term sends SIGTERM to the background processes.
func termCmd(ts *testscript.TestScript, _ bool, _ []string) {
	for _, cmd := range ts.BackgroundCmds() {
		ts.Check(cmd.Process.Signal(syscall.SIGTERM))
	}
}

// status N ARGS… runs starlingd and compares its exit status.
func statusCmd(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec("starlingd", args[1:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("exit status %d, want %s", got, args[0])
	}
}

// waitheight PORT HEIGHT waits until the node with RPC at that port has the block.
func waitHeightCmd(ts *testscript.TestScript, _ bool, args []string) {
	height, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	ts.Check(waitHeight("http://127.0.0.1:"+args[0], height))
}

// firsthash PORT FILE compares the app hash in a node's first header, which is that of the state
// before the first block, with the one in the file.
func firstHashCmd(ts *testscript.TestScript, _ bool, args []string) {
	client, err := rpchttp.New("http://127.0.0.1:"+args[0], "/websocket")
	ts.Check(err)
	first := int64(1)
	block, err := client.Block(context.Background(), &first)
	ts.Check(err)
	if got, want := strings.ToLower(block.Block.AppHash.String()), strings.TrimSpace(ts.ReadFile(args[1])); got != want {
		ts.Fatalf("the first header has app hash %s, want %s", got, want)
	}
}

func waitHeight(address string, height int64) error {
	client, err := rpchttp.New(address, "/websocket")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		status, err := client.Status(ctx)
		if err == nil && status.SyncInfo.LatestBlockHeight >= height {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not reach height %d: %w", address, height, err)
		case <-tick.C:
		}
	}
}

// jsonset FILE PATH VALUE changes a field of a JSON file: PATH has dots, VALUE is JSON.
func jsonSetCmd(ts *testscript.TestScript, _ bool, args []string) {
	var object map[string]any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &object))
	var value any
	ts.Check(json.Unmarshal([]byte(args[2]), &value))
	at, path := object, strings.Split(args[1], ".")
	for _, name := range path[:len(path)-1] {
		at = at[name].(map[string]any)
	}
	at[path[len(path)-1]] = value
	raw, err := json.Marshal(object)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), raw, 0o600))
}
