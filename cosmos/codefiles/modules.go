package codefiles

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/internal/durable"
	"github.com/starling-kv/starling/internal/keyspace"
)

// Module is a module that keeps code in files.
type Module struct {
	Store string // name of its store
	What  string // what its files have
	Use   string // what a block does that needs a file
	// Folders are the folders of a home that chains use, the most common one first. A wasm VM keeps
	// the files in vmFolder of one.
	Folders []string

	prefix byte   // first byte of the store's keys that have hashes
	legacy string // key with which older versions of the module keep all hashes in one record
	hash   func(key, value []byte) (iavlsync.Hash, error)
}

// Modules are the known modules: x/wasm of wasmd and 08-wasm of ibc-go.
var Modules = []Module{
	{"wasm", "the code of its contracts", "calls a contract", []string{"wasm/wasm", "wasm", "data/wasm"}, 0x01, "", hashOfCode},
	{"08-wasm", "the code of its light clients", "updates a light client",
		[]string{"data/08-light-client", "ibc_08-wasm_client_data"}, 0x00, "checksums", hashInKey},
}

// vmFolder is the folder of a VM's files in the module's folder (cosmwasm-vm, cache.rs).
var vmFolder = filepath.Join("state", "wasm")

// path returns where a VM reads the file with a hash, which is the code as it was uploaded. The
// name is the hash in lower-case hexadecimal; newer VMs write it with an extension, and read both.
func (m *Module) path(home string, hash iavlsync.Hash) string {
	plain := filepath.Join(m.Folder(home), vmFolder, hash.String())
	if _, err := os.Stat(plain + ".wasm"); err == nil {
		return plain + ".wasm"
	}
	return plain
}

// errUnknownRecord reports a record of a module in a form that this package does not know.
var errUnknownRecord = errors.New("unknown form of a record with a code hash")

// hashOfCode returns the hash in a record of x/wasm: 01 ‖ code ID:8 → a CodeInfo, whose field 1 is
// the hash (wasmd, x/wasm/types, keys.go and types.proto).
func hashOfCode(key, value []byte) (h iavlsync.Hash, err error) {
	const tag = 1<<3 | 2 // field 1, bytes
	if len(key) != 1+8 || len(value) < 2+len(h) || value[0] != tag || int(value[1]) != len(h) {
		return h, errUnknownRecord
	}
	return iavlsync.Hash(value[2 : 2+len(h)]), nil
}

// hashInKey returns the hash in a key of 08-wasm: 00 ‖ hash (ibc-go, 08-wasm, types/keys.go).
func hashInKey(key, _ []byte) (h iavlsync.Hash, err error) {
	if len(key) != 1+len(h) {
		return h, errUnknownRecord
	}
	return iavlsync.Hash(key[1:]), nil
}

// Of returns the module with a store, or nil if it is unknown.
func Of(store string) *Module {
	if i := slices.IndexFunc(Modules, func(m Module) bool { return m.Store == store }); i >= 0 {
		return &Modules[i]
	}
	return nil
}

// Hashes returns the hashes of a module's files, ascending and each once, from the latest state of
// an application's database. It reads the fast index, which joined databases have.
func (m *Module) Hashes(db nodedb.DB) (hashes []iavlsync.Hash, err error) {
	if m.legacy != "" {
		old, err := db.Get([]byte("s/k:" + m.Store + "/f" + m.legacy))
		if err != nil {
			return nil, err
		}
		if old != nil {
			return nil, fmt.Errorf("store %q: %w: its module has not run the migration of the record %q yet", m.Store, errUnknownRecord, m.legacy)
		}
	}
	begin := append([]byte("s/k:"+m.Store+"/f"), m.prefix)
	it, err := db.Iterator(begin, keyspace.PrefixEnd(begin))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ; it.Valid(); it.Next() {
		_, value, err := nodedb.DecodeFast(it.Value())
		if err != nil {
			return nil, err
		}
		h, err := m.hash(it.Key()[len(begin)-1:], value)
		if err != nil {
			return nil, fmt.Errorf("store %q: %w", m.Store, err)
		}
		hashes = append(hashes, h)
	}
	slices.SortFunc(hashes, func(a, b iavlsync.Hash) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(hashes), it.Error()
}

// Folder returns the module's folder of a home: the first of Folders that exists, or else the first
// one.
func (m *Module) Folder(home string) string {
	for _, f := range m.Folders {
		dir := filepath.Join(home, filepath.FromSlash(f))
		if _, err := os.Stat(filepath.Join(dir, vmFolder)); err == nil {
			return dir
		}
	}
	return filepath.Join(home, filepath.FromSlash(m.Folders[0]))
}

// Missing returns which of the files with these hashes a home does not have, or has damaged.
func (m *Module) Missing(home string, hashes []iavlsync.Hash) (missing []iavlsync.Hash, err error) {
	for _, h := range hashes {
		b, err := os.ReadFile(m.path(home, h))
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && sha256.Sum256(b) != h:
			missing = append(missing, h)
		case err != nil:
			return nil, err
		}
	}
	return missing, nil
}

// Write writes a file durably, in place of one that is damaged.
func (m *Module) Write(home string, content []byte) error {
	path := m.path(home, sha256.Sum256(content))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // with the VM's permissions
		return err
	}
	return durable.Write(path, content, 0o644)
}
