package app

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/datadriven"

	"github.com/starling-kv/starling/tx"
)

// The notation of transactions in scripts: see TestScripts.

// transactions parses the lines of a command.
func (s *script) transactions(d *datadriven.TestData) [][]byte {
	var raw [][]byte
	earlier := map[string]uint64{}
	for line := range strings.Lines(d.Input) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		label, rest, labelled := strings.Cut(line, "] ")
		if !labelled {
			rest = line
		}
		raw = append(raw, s.transaction(d, rest, earlier))
		if labelled {
			s.sent[strings.TrimPrefix(label, "[")] = raw[len(raw)-1]
		}
	}
	return raw
}

func (s *script) transaction(d *datadriven.TestData, line string, earlier map[string]uint64) []byte {
	if text, ok := strings.CutPrefix(line, "text "); ok {
		return s.word(text)
	}
	if text, ok := strings.CutPrefix(line, "raw "); ok {
		raw, err := hex.DecodeString(text)
		if err != nil {
			d.Fatalf(s.t, "%v", err)
		}
		return raw
	}
	who, what, ok := strings.Cut(line, ":")
	if !ok {
		d.Fatalf(s.t, "no transaction: %s", line)
	}
	if who == "again" {
		raw, ok := s.sent[strings.TrimSpace(what)]
		if !ok {
			d.Fatalf(s.t, "no transaction %s", what)
		}
		return raw
	}
	chain := testChain
	if name, other, ok := strings.Cut(who, "@"); ok {
		who, chain = name, other
	}
	name, number, explicit := strings.Cut(who, "#")
	var nonce uint64
	if explicit {
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			d.Fatalf(s.t, "%v", err)
		}
		nonce = n
	} else {
		_, v := s.app.Latest()
		if v != nil {
			defer v.Release()
			nonce, _ = committedNonce(v, account(name))
		}
		nonce += earlier[name]
		earlier[name]++
	}
	var operations []tx.Operation
	for text := range strings.SplitSeq(what, ";") {
		operations = append(operations, s.operation(d, strings.Fields(text)))
	}
	return signFor(s.t, chain, name, nonce, operations...)
}

func (s *script) operation(d *datadriven.TestData, words []string) tx.Operation {
	w := func(i int) string {
		if i >= len(words) {
			d.Fatalf(s.t, "too few words: %v", words)
		}
		return string(s.word(words[i]))
	}
	number := func(i int) uint64 {
		n, err := strconv.ParseUint(w(i), 10, 64)
		if err != nil {
			d.Fatalf(s.t, "%v", err)
		}
		return n
	}
	who := func(i int) []byte {
		if w(i) == "*" {
			return nil
		}
		return account(w(i))
	}
	switch words[0] {
	case "put":
		return put(w(1), w(2))
	case "del":
		return del(w(1))
	case "cas":
		expected := w(2)
		if expected == "-" {
			expected = ""
		}
		return cas(w(1), expected, w(3))
	case "read":
		return read(w(1))
	case "compare":
		if w(2) == "present" {
			return tx.NewComparePresent([]byte(w(1)))
		}
		return tx.NewCompare([]byte(w(1)), []byte(strings.TrimPrefix(w(2), "-")))
	case "list":
		return tx.NewReadRange([]byte(w(1)), []byte(w(2)), uint32(number(3)))
	case "clear":
		return tx.NewDeleteRange([]byte(w(1)), []byte(w(2)), uint32(number(3)))
	case "clear-part":
		return tx.NewDeletePart([]byte(w(1)), []byte(w(2)), uint32(number(3)))
	case "if":
		return s.txn(d, words[1:])
	case "read-nonce":
		return read(string(NonceKey(who(1))))
	case "grant":
		quota := uint64(0)
		if len(words) > 3 {
			quota = number(3)
		}
		return grantOp(who(1), w(2), quota)
	case "revoke":
		return revokeOp(who(1), w(2))
	case "validator":
		if len(words) > 3 {
			return confirmedOp(who(1), number(2))
		}
		return validatorOp(who(1), number(2))
	case "upgrade":
		info := ""
		if len(words) > 3 {
			info = w(3)
		}
		return tx.NewScheduleUpgrade(number(1), number(2), info)
	case "cancel":
		return tx.NewCancelUpgrade(number(1))
	case "threshold":
		return tx.NewSetThreshold(number(1))
	case "withdraw":
		return tx.NewWithdraw()
	case "propose": // EXPIRES / operation / operation
		var operations []tx.Operation
		for text := range strings.SplitSeq(strings.Join(words[2:], " "), "/") {
			if fields := strings.Fields(text); len(fields) > 0 {
				operations = append(operations, s.operation(d, fields))
			}
		}
		o, err := tx.NewPropose(number(1), operations...)
		if err != nil {
			d.Fatalf(s.t, "%v", err)
		}
		return o
	case "approve": // the proposal of the account in the last state
		return tx.NewApprove(who(1), s.digest(who(1)))
	case "approve-other":
		return tx.NewApprove(who(1), [tx.DigestBytes]byte{1})
	case "add":
		delta := must(strconv.ParseInt(w(2), 10, 64))
		if len(words) > 3 {
			return tx.NewBoundedAdd([]byte(w(1)), delta, must(strconv.ParseInt(w(3), 10, 64)), must(strconv.ParseInt(w(4), 10, 64)))
		}
		return tx.NewAdd([]byte(w(1)), delta)
	case "deploy":
		return tx.NewDeploy([]byte(words[3]+"\n"), toySteps(words[4:]), number(1), uint32(number(2)))
	case "call":
		return tx.NewCall(toyAddress(w(1)), toySteps(words[4:]), number(2), uint32(number(3)), 0)
	case "admin", "unadmin":
		return adminOp(who(1), words[0] == "unadmin")
	}
	d.Fatalf(s.t, "unknown operation %s", words[0])
	return tx.Operation{}
}

// toySteps returns the input of toyEngine. "," stands between steps, "@NAME.N/SLOT" for a slot of
// another program.
func toySteps(words []string) []byte {
	for i, word := range words {
		if at, slot, other := strings.Cut(word, "/"); other {
			words[i] = fmt.Sprintf("%x/%s", toyAddress(at[1:]), slot)
		}
	}
	return []byte(strings.ReplaceAll(strings.Join(words, " "), " , ", "; "))
}

// toyAddress returns the address of the program that NAME deployed after N others, for "NAME.N".
func toyAddress(text string) []byte {
	name, n, _ := strings.Cut(text, ".")
	return toyEngine{}.deployed(account(name), must(strconv.ParseUint(n, 10, 64)))
}

// txn parses "CONDITION and … then OPERATION & … else OPERATION & …"; every part may be empty.
func (s *script) txn(d *datadriven.TestData, words []string) tx.Operation {
	var t tx.Txn
	condition, success, failure := words, []string(nil), []string(nil)
	if i := slices.Index(condition, "else"); i >= 0 {
		condition, failure = condition[:i], condition[i+1:]
	}
	if i := slices.Index(condition, "then"); i >= 0 {
		condition, success = condition[:i], condition[i+1:]
	}
	for _, words := range splitWords(condition, "and") {
		compare := s.operation(d, append([]string{"compare"}, words...))
		t.Compares = append(t.Compares, *compare.GetCompare())
	}
	for _, words := range splitWords(success, "&") {
		t.Success = append(t.Success, s.operation(d, words))
	}
	for _, words := range splitWords(failure, "&") {
		t.Failure = append(t.Failure, s.operation(d, words))
	}
	return tx.Operation{Op: &tx.Operation_Txn{Txn: &t}}
}

func splitWords(words []string, at string) (parts [][]string) {
	for len(words) > 0 {
		i := slices.Index(words, at)
		if i < 0 {
			return append(parts, words)
		}
		parts, words = append(parts, words[:i]), words[i+1:]
	}
	return parts
}

// digest returns the digest of the account's proposal in the last state, or zeros if there is none.
func (s *script) digest(proposer []byte) (digest [tx.DigestBytes]byte) {
	_, v := s.app.Latest()
	defer v.Release()
	record, ok, err := v.Get(ProposalKey(proposer))
	if err != nil || !ok {
		return digest
	}
	p, err := tx.DecodeProposal(record)
	if err == nil {
		digest, err = p.Digest(testChain, proposer)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return digest
}

func (s *script) word(text string) []byte {
	if text == `""` {
		return nil
	}
	if word, times, ok := strings.Cut(text, "*"); ok && word != "" {
		if n, err := strconv.Atoi(times); err == nil {
			return []byte(word[:len(word)-1] + strings.Repeat(word[len(word)-1:], n))
		}
	}
	if strings.Contains(text, `\`) {
		unquoted, err := strconv.Unquote(`"` + text + `"`)
		if err != nil {
			s.t.Fatal(err)
		}
		return []byte(unquoted)
	}
	return []byte(text)
}
