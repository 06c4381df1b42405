package app

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	abci "github.com/cometbft/cometbft/abci/types"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// TestScripts runs testdata/*.txt. Regenerate the outputs with -rewrite (and read the difference).
//
//	genesis [validators=(v1:10,v2:5)] [initial-height=n] [max-bytes=n] [app-version=n] [key-types=(t)] [chain=id] [newest=n]
//	<app_state; "@name" is the account of name>
//
//	block | finalize [height=n] [signed=(v1,v2)] [nil=(v3)] [absent=(v4)]
//	prepare [max-bytes=n] and the commit as above | process | check | recheck
//	<one transaction per line>
//
//	commit | restart [newest=n] [programs] | info | records | get KEY [height=n] | range [start=] [end=] [limit=n] | nonce NAME | query PATH
//
// A transaction is "text WORDS", "raw HEX" or "NAME[#nonce][@chain]: operation; operation…". The
// operations are put K V, del K, cas K EXPECTED V ("-": absent), read K, read-nonce NAME, grant
// NAME|* PREFIX [QUOTA], revoke NAME|* PREFIX, validator NAME POWER [confirmed], admin NAME,
// unadmin NAME, upgrade VERSION HEIGHT [INFO], cancel VERSION, compare K V|-|present, list START
// END LIMIT, clear START END LIMIT, clear-part START END LIMIT, and "if K V|-|present and … then
// OPERATION & … else OPERATION & …"; and threshold N, propose EXPIRES / OPERATION / OPERATION…, add
// K DELTA [MIN MAX], deploy GAS KEYS CODE STEPS (see toyEngine), call NAME.N GAS KEYS STEPS, where
// NAME.N is the program that NAME deployed after N others; withdraw, approve NAME (the proposal of
// that account in the last state), approve-other NAME. "" is empty, w*n is w with its last letter n
// times, \xNN a byte. Without #nonce the nonce is the account's committed nonce plus the number of
// its earlier lines in the same command. A transaction after "[label] " is sent again by "again:
// label".
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !strings.HasSuffix(path, ".txt") {
			return
		}
		s := &script{t: t, store: &memoryStore{}, names: map[string]string{}, sent: map[string][]byte{}}
		for _, name := range []string{"alice", "bob", "carol", "ann", "dave", "root", "root2", "v1", "v2", "v3", "v4", "v5"} {
			s.names[hexOf(name)] = "@" + name
		}
		datadriven.RunTest(t, path, s.run)
	})
}

type script struct {
	t     *testing.T
	store *memoryStore
	app   *App
	names map[string]string // by account in hex
	sent  map[string][]byte // by label
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	out := s.command(d)
	for account, name := range s.names {
		out = strings.ReplaceAll(out, account, name)
	}
	if out == "" {
		return "ok\n"
	}
	return out
}

func (s *script) command(d *datadriven.TestData) string {
	switch d.Cmd {
	case "genesis":
		return s.genesis(d)
	case "block":
		out := s.finalize(d)
		return out + s.commit()
	case "finalize":
		return s.finalize(d)
	case "commit":
		return s.commit()
	case "check", "recheck":
		return s.check(d)
	case "prepare":
		return s.prepare(d)
	case "process":
		res, err := s.app.ProcessProposal(ctx, &abci.RequestProcessProposal{Txs: s.transactions(d)})
		if err != nil {
			return err.Error()
		}
		return res.Status.String()
	case "restart":
		if err := s.restart(d); err != nil {
			return "error: " + err.Error()
		}
		return s.info()
	case "info":
		return s.info()
	case "records":
		return s.records()
	case "get":
		return s.query(d, PathKey, s.word(d.CmdArgs[0].Key))
	case "nonce":
		return s.query(d, PathNonce, account(d.CmdArgs[0].Key))
	case "range":
		return s.queryRange(d)
	case "query":
		return s.query(d, d.CmdArgs[0].Key, []byte(d.Input))
	}
	d.Fatalf(s.t, "unknown command %s", d.Cmd)
	return ""
}

func (s *script) genesis(d *datadriven.TestData) string {
	req := initRequest(d.Input)
	if d.HasArg("validators") {
		req.Validators = nil
		for _, v := range argument(d, "validators") {
			if v == "" {
				continue
			}
			name, power, _ := strings.Cut(v, ":")
			n, err := strconv.ParseInt(power, 10, 64)
			if err != nil {
				d.Fatalf(s.t, "%v", err)
			}
			req.Validators = append(req.Validators, abci.Ed25519ValidatorUpdate(account(name), n))
		}
	}
	if d.HasArg("initial-height") {
		d.ScanArgs(s.t, "initial-height", &req.InitialHeight)
	}
	if d.HasArg("max-bytes") {
		d.ScanArgs(s.t, "max-bytes", &req.ConsensusParams.Block.MaxBytes)
	}
	if d.HasArg("app-version") {
		d.ScanArgs(s.t, "app-version", &req.ConsensusParams.Version.App)
	}
	if d.HasArg("key-types") {
		req.ConsensusParams.Validator.PubKeyTypes = argument(d, "key-types")
	}
	if d.HasArg("chain") {
		d.ScanArgs(s.t, "chain", &req.ChainId)
	}
	s.store = &memoryStore{}
	if err := s.restart(d); err != nil {
		d.Fatalf(s.t, "%v", err)
	}
	res, err := s.app.InitChain(ctx, req)
	if err != nil {
		return "error: " + err.Error()
	}
	out := fmt.Sprintf("app hash %x\n", res.AppHash)
	if res.ConsensusParams != nil {
		out += fmt.Sprintf("version.app = %d\n", res.ConsensusParams.Version.App)
	}
	return out
}

// restart starts a program that knows the app versions up to newest, on the state in the store.
func (s *script) restart(d *datadriven.TestData) (err error) {
	options := Options{Store: s.store, KeepRecent: 4, ChainID: testChain}
	if d.HasArg("programs") {
		options.Programs = toyEngine{}
	}
	if d.HasArg("newest") {
		d.ScanArgs(s.t, "newest", &options.NewestVersion)
	}
	s.app, err = New(options)
	return err
}

func argument(d *datadriven.TestData, name string) []string {
	for _, a := range d.CmdArgs {
		if a.Key == name {
			return a.Vals
		}
	}
	return nil
}

func (s *script) finalize(d *datadriven.TestData) string {
	s.app.block.Lock()
	height := s.app.block.height + 1
	if s.app.block.height == 0 {
		height = s.app.block.initial
	}
	s.app.block.Unlock()
	if d.HasArg("height") {
		d.ScanArgs(s.t, "height", &height)
	}
	res, err := s.app.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{
		Height: height, Time: time.Unix(1_700_000_000+height, 0), Txs: s.transactions(d), DecidedLastCommit: lastCommit(d),
	})
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	var out strings.Builder
	for i, r := range res.TxResults {
		fmt.Fprintf(&out, "%d: %s\n", i, describeResult(s.t, r))
	}
	for _, u := range res.ValidatorUpdates {
		fmt.Fprintf(&out, "validator %x = %d\n", u.PubKey.GetEd25519(), u.Power)
	}
	if res.ConsensusParamUpdates != nil {
		fmt.Fprintf(&out, "version.app = %d\n", res.ConsensusParamUpdates.Version.App)
	}
	fmt.Fprintf(&out, "block %d app hash %x\n", height, res.AppHash)
	return out.String()
}

// lastCommit returns the commit in a block's arguments.
func lastCommit(d *datadriven.TestData) (commit abci.CommitInfo) {
	for _, flag := range []struct {
		argument string
		flag     cmtproto.BlockIDFlag
	}{{"signed", cmtproto.BlockIDFlagCommit}, {"nil", cmtproto.BlockIDFlagNil}, {"absent", cmtproto.BlockIDFlagAbsent}} {
		for _, name := range argument(d, flag.argument) {
			commit.Votes = append(commit.Votes, vote(name, flag.flag))
		}
	}
	return commit
}

func describeResult(t *testing.T, r *abci.ExecTxResult) string {
	if r.Code != 0 {
		if r.Codespace != tx.Codespace || len(r.Data) > 0 || len(r.Events) > 0 {
			t.Errorf("a refusal with codespace %q, data or events: %v", r.Codespace, r)
		}
		return fmt.Sprintf("%d %s: %s", r.Code, tx.Code(r.Code), r.Log)
	}
	var result tx.Result
	if err := result.Unmarshal(r.Data); err != nil {
		t.Error(err)
	}
	out := []string{"ok"}
	for i := range result.Results {
		out = append(out, describeOperation(&result.Results[i]))
	}
	line := strings.Join(out, " | ")
	for _, e := range r.Events {
		if e.Type == EventTypeProgram {
			line += "\n   log"
			for _, a := range e.Attributes {
				line += fmt.Sprintf(" %s=%.40s", a.Key, a.Value)
			}
			continue
		}
		key, err := hex.DecodeString(e.Attributes[0].Value)
		if err != nil || e.Type != EventType || e.Attributes[0].Key != EventKey || e.Attributes[1].Key != EventKind {
			t.Errorf("event %v", e)
		}
		line += fmt.Sprintf("\n   event %s %s", e.Attributes[1].Value, printable(key))
	}
	return line
}

func describeOperation(o *tx.OperationResult) string {
	text := "new"
	if o.Found {
		text = "found"
	}
	if len(o.Value) > 0 {
		text += " " + printable(o.Value)
	}
	for _, e := range o.Entries {
		text += " " + printable(e.Key) + "=" + printable(e.Value)
	}
	if o.Deleted > 0 {
		text += fmt.Sprintf(" %d deleted", o.Deleted)
	}
	if o.More {
		text += " …"
	}
	if o.Succeeded {
		text = "success"
	} else if len(o.Results) > 0 {
		text = "failure"
	}
	for i := range o.Results {
		text += " [" + describeOperation(&o.Results[i]) + "]"
	}
	return text
}

// printable formats a key or value; system keys have their account in hex.
func printable(b []byte) string {
	if len(b) == 1 && b[0] == 1 {
		return "0x01"
	}
	if len(b) == 8 && b[0] == 0 {
		return strconv.FormatUint(decodeUint64(b), 10)
	}
	if len(b) >= 2 && b[0] == 0 {
		out, rest := fmt.Sprintf(`0x00 '%c'`, b[1]), b[2:]
		if b[1] == tagCover || b[1] == tagParams {
			return out + fmt.Sprintf(" %q", rest)
		}
		if len(rest) >= AccountBytes {
			if string(rest[:AccountBytes]) == string(everyone) {
				out += " *"
			} else {
				out += fmt.Sprintf(" %x", rest[:AccountBytes])
			}
			rest = rest[AccountBytes:]
		}
		if b[1] == tagGrant {
			return out + fmt.Sprintf(" %q", rest)
		}
		return out + fmt.Sprintf("%x", rest)
	}
	if len(b) > 40 {
		return fmt.Sprintf("%q… (%d bytes)", b[:8], len(b))
	}
	return fmt.Sprintf("%q", b)
}

func (s *script) commit() string {
	res, err := s.app.Commit(ctx, &abci.RequestCommit{})
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	if res.RetainHeight != 0 {
		return fmt.Sprintf("retain height %d\n", res.RetainHeight)
	}
	return ""
}

func (s *script) check(d *datadriven.TestData) string {
	var out strings.Builder
	kind := abci.CheckTxType_New
	if d.Cmd == "recheck" {
		kind = abci.CheckTxType_Recheck
	}
	for i, raw := range s.transactions(d) {
		res, err := s.app.CheckTx(ctx, &abci.RequestCheckTx{Tx: raw, Type: kind})
		switch {
		case err != nil:
			fmt.Fprintf(&out, "%d: error: %v\n", i, err)
		case res.Code != 0:
			fmt.Fprintf(&out, "%d: %d %s: %s\n", i, res.Code, tx.Code(res.Code), res.Log)
		default:
			fmt.Fprintf(&out, "%d: ok\n", i)
		}
	}
	return out.String()
}

func (s *script) prepare(d *datadriven.TestData) string {
	req := &abci.RequestPrepareProposal{Txs: s.transactions(d), MaxTxBytes: 1 << 30, LocalLastCommit: extended(lastCommit(d))}
	if d.HasArg("max-bytes") {
		d.ScanArgs(s.t, "max-bytes", &req.MaxTxBytes)
	}
	res, err := s.app.PrepareProposal(ctx, req)
	if err != nil {
		return "error: " + err.Error()
	}
	if err := cmttypes.ToTxs(res.Txs).Validate(req.MaxTxBytes); err != nil {
		s.t.Error(err)
	}
	var out strings.Builder
	for _, proposed := range res.Txs {
		from := "rewritten"
		for i, raw := range req.Txs {
			if string(raw) == string(proposed) {
				from = fmt.Sprintf("line %d", i)
				break
			}
		}
		if proposed[0] == reserved {
			fmt.Fprintf(&out, "%s\n", from)
		} else {
			fmt.Fprintf(&out, "%s %q\n", from, proposed)
		}
	}
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}

func (s *script) info() string {
	res, err := s.app.Info(ctx, &abci.RequestInfo{})
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("height %d app hash %x version %d\n", res.LastBlockHeight, res.LastBlockAppHash, res.AppVersion)
}

func (s *script) records() string {
	_, v := s.app.Latest()
	defer v.Release()
	var out strings.Builder
	for kv, err := range v.Ascend([]byte{0}, []byte{1}) {
		if err != nil {
			s.t.Error(err)
			break
		}
		k, value := kv.Key, kv.Value
		if k[1] == tagParams {
			p, err := ReadParams(v)
			if err != nil {
				s.t.Error(err)
			}
			fmt.Fprintf(&out, "0x00 'p' = %s\n", p.String())
			continue
		}
		if k[1] == tagProposal {
			p, err := tx.DecodeProposal(value)
			if err != nil {
				s.t.Error(err)
				continue
			}
			fmt.Fprintf(&out, "%s = nonce %d, %d operations, expires %d, approved by", printable(k), p.Nonce, len(p.Propose.Operations), p.Propose.Expires)
			for _, a := range p.Approvals {
				fmt.Fprintf(&out, " %x", a)
			}
			fmt.Fprintln(&out)
			continue
		}
		if k[1] == tagUpgrade {
			u, err := readUpgrade(v)
			if err != nil {
				s.t.Error(err)
			}
			fmt.Fprintf(&out, "0x00 'u' = %s\n", u.String())
			continue
		}
		fmt.Fprintf(&out, "%s = %s\n", printable(k), printable(value))
	}
	return out.String()
}

func (s *script) query(d *datadriven.TestData, path string, data []byte) string {
	req := &abci.RequestQuery{Path: path, Data: data, Prove: path == PathKey}
	if d.HasArg("height") {
		d.ScanArgs(s.t, "height", &req.Height)
	}
	if d.HasArg("prove") {
		req.Prove = true
	}
	res, err := s.app.Query(ctx, req)
	if err != nil {
		return "error: " + err.Error()
	}
	if res.Code != 0 {
		return fmt.Sprintf("%d %s: %s\n", res.Code, tx.Code(res.Code), res.Log)
	}
	if path == PathKey {
		proof := avlstar.Proof{State: res.ProofOps.Ops[0].Data, Map: res.ProofOps.Ops[1].Data}
		hash, err := appHash(s.app, res.Height)
		if err != nil {
			s.t.Error(err)
		}
		var value []byte
		if len(res.Value) > 0 {
			value = res.Value
		}
		if err := avlstar.VerifyProof(hash, data, value, proof); err != nil {
			s.t.Errorf("proof of %q: %v", data, err)
		}
	}
	return fmt.Sprintf("height %d %s %s\n", res.Height, printable(res.Value), res.Log)
}

func (s *script) queryRange(d *datadriven.TestData) string {
	var (
		start, end string
		limit      int
	)
	for name, to := range map[string]*string{"start": &start, "end": &end} {
		if d.HasArg(name) {
			d.ScanArgs(s.t, name, to)
		}
	}
	if d.HasArg("limit") {
		d.ScanArgs(s.t, "limit", &limit)
	}
	request := RangeRequest{Start: []byte(start), End: []byte(end), Limit: uint32(limit)}
	data, err := request.Marshal()
	if err != nil {
		return err.Error()
	}
	answer, next, err := provedRange(s.app, data)
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, e := range answer {
		fmt.Fprintf(&out, "%s = %s\n", printable(e.Key), printable(e.Value))
	}
	if next != nil {
		fmt.Fprintf(&out, "next %s\n", printable(next))
	}
	return out.String()
}
