package app

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/starling-kv/starling/app/program"
)

// toyEngine executes calls whose input is a list of "; "-separated steps:
//
//	set SLOT VALUE    VALUE - deletes; SLOT is a word, or ADDRESS/SLOT in another program
//	follow SLOT VALUE sets the slot whose name is the value of SLOT
//	get SLOT | env    appends the value, or chain, height and time, to the output
//	log TOPIC DATA | revert REASON | fail REASON
//
// Each step costs 1,000 gas. A deployment runs its input in the same way, after its code is stored.
// Code and input are separated by the first line feed.
type toyEngine struct{}

func (toyEngine) Address(account []byte) []byte {
	hash := sha256.Sum256(account)
	return hash[:program.AddressBytes]
}

// deployed returns the address of the program that an account deploys with its nth deployment.
func (e toyEngine) deployed(account []byte, n uint64) []byte {
	hash := sha256.Sum256(binary.BigEndian.AppendUint64(e.Address(account), n))
	return hash[:program.AddressBytes]
}

// toyRun is the state of one call.
type toyRun struct {
	read   program.Reader
	before map[string][]byte
	after  map[string][]byte
	done   program.Result
	err    error
}

func (r *toyRun) get(key []byte) []byte {
	if value, ok := r.after[string(key)]; ok || r.err != nil {
		return value
	}
	value, err := r.read(key)
	if r.err = err; err == nil {
		value = bytes.Clone(value)
		r.before[string(key)], r.after[string(key)] = value, value
	}
	return value
}

func (r *toyRun) set(key, value []byte) {
	if r.get(key); r.err == nil {
		r.after[string(key)] = value
	}
}

func (e toyEngine) Run(env program.Env, call program.Call, read program.Reader) (*program.Result, error) {
	r := &toyRun{read: read, before: map[string][]byte{}, after: map[string][]byte{}}
	input := string(call.Input)
	r.done.Address = call.To
	if call.To == nil {
		own := program.AccountKey(e.Address(call.Account))
		n := decodeUint64(firstBytes(r.get(own)))
		r.set(own, append(encodeUint64(n+1), make([]byte, 32)...))
		code, steps, _ := strings.Cut(input, "\n")
		hash := sha256.Sum256([]byte(code))
		r.done.Address = e.deployed(call.Account, n)
		r.set(program.AccountKey(r.done.Address), append(encodeUint64(1), hash[:]...))
		r.set(program.CodeKey(r.done.Address), []byte(code))
		input = steps
	} else {
		r.get(program.AccountKey(call.To))
		r.get(program.CodeKey(call.To))
	}
	for _, step := range strings.Split(input, "; ") {
		if r.err != nil {
			return nil, r.err
		}
		if r.done.Gas += 1000; r.done.Gas > call.Gas {
			return &program.Result{Status: program.OutOfGas, Reason: "out of gas", Gas: call.Gas}, nil
		}
		if words := strings.Fields(step); len(words) > 0 {
			r.step(env, words)
		}
		if len(r.after) > call.Keys {
			return &program.Result{Status: program.TooMany, Reason: "too many", Gas: r.done.Gas}, nil
		}
		if r.done.Status != program.Done {
			return &r.done, nil
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	for _, key := range slices.Sorted(maps.Keys(r.after)) {
		r.done.Keys = append(r.done.Keys, []byte(key))
		if !bytes.Equal(r.after[key], r.before[key]) {
			r.done.Changes = append(r.done.Changes, program.Change{Key: []byte(key), Value: r.after[key]})
		}
	}
	return &r.done, nil
}

func (r *toyRun) step(env program.Env, words []string) {
	value := func(word string) []byte {
		if word == "-" {
			return nil
		}
		return []byte(word)
	}
	switch words[0] {
	case "set":
		r.set(r.slot(words[1]), value(words[2]))
	case "follow":
		if at := r.get(r.slot(words[1])); r.err == nil {
			r.set(r.slot(string(at)), value(words[2]))
		}
	case "get":
		r.done.Output = append(r.done.Output, r.get(r.slot(words[1]))...)
	case "env":
		r.done.Output = fmt.Appendf(r.done.Output, "%s %d %d", env.ChainID, env.Height, env.Time)
	case "log":
		topic := sha256.Sum256([]byte(words[1]))
		r.done.Logs = append(r.done.Logs, program.Log{Address: r.done.Address, Topics: [][]byte{topic[:]}, Data: []byte(words[2])})
	case "revert":
		r.done = program.Result{Status: program.Reverted, Reason: strings.Join(words[1:], " ")}
	default:
		r.done = program.Result{Status: program.Failed, Reason: strings.Join(words, " ")}
	}
}

// slot returns the key of a slot of this program, or of another one.
func (r *toyRun) slot(word string) []byte {
	address := r.done.Address
	if at, name, other := strings.Cut(word, "/"); other {
		address, word = must(hex.DecodeString(at)), name
	}
	return toySlot(address, word)
}

func toySlot(address []byte, name string) []byte {
	slot := make([]byte, program.SlotBytes)
	copy(slot, name)
	return program.SlotKey(address, slot)
}

func firstBytes(value []byte) []byte { return value[:min(len(value), 8)] }
