package cli

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/client"
)

// maxBackup and maxBackupFiles limit what is read from a backup.
const maxBackup, maxBackupFiles = 16 << 20, 10_000

// scryptWork is client.ScryptWork, except in tests.
var scryptWork = client.ScryptWork

// backedUp matches the files of a home that a backup contains. It excludes the signing state: with
// an old copy, a validator signs the same heights again.
var backedUp = regexp.MustCompile(`^(config/node_key\.json|config/priv_validator_key\.json|config/ranges_key\.json|keys/[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.json)$`)

func newKeysBackupCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write all keys of the home into one encrypted file",
		Long: `Write all keys of the home into one new file, encrypted with a passphrase: the keys that
sign transactions, the validator's key, the node key, and the key that signs the map of
ranges. They must have their default names (config/priv_validator_key.json, node_key.json,
ranges_key.json). The file is a tar archive, encrypted in the format of the age program.

It does not contain data/priv_validator_state.json: with an old copy of that file, a
validator signs again at heights that it has already signed.`,
		Example: "  starlingd keys backup keys.age --new-passphrase-file FILE",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			names, archive, err := archiveKeys(env.Home)
			if err != nil {
				return err
			}
			passphrase, err := newPassphrase(env, newPassphraseFlag, "the backup")
			if err != nil {
				return err
			}
			if passphrase == "" {
				return usagef("no passphrase for the backup: use --%s FILE, or set %s", newPassphraseFlag, variableOf(newPassphraseFlag))
			}
			if err := writeBackup(args[0], archive, passphrase); err != nil {
				return err
			}
			fmt.Fprintf(env.Err, "wrote %s to %s\n", counted(len(names), "file"), args[0])
			return nil
		},
	}
	cmd.Flags().String(newPassphraseFlag, "", "file whose first line is the passphrase of the backup (or the variable "+variableOf(newPassphraseFlag)+")")
	return cmd
}

// archiveKeys returns a tar archive of the keys of a home, and their names in it.
func archiveKeys(home string) (names []string, archive []byte, err error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, dir := range []string{"config", "keys"} {
		files, err := os.ReadDir(filepath.Join(home, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		for _, f := range files {
			name := dir + "/" + f.Name()
			if !backedUp.MatchString(name) {
				continue
			}
			content, err := os.ReadFile(filepath.Join(home, name))
			if err != nil {
				return nil, nil, err
			}
			header := tar.Header{Name: name, Mode: 0o600, Size: int64(len(content)), Typeflag: tar.TypeReg}
			if err := w.WriteHeader(&header); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", name, err)
			}
			if _, err := w.Write(content); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", name, err)
			}
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, nil, usagef("%q has no keys: is it a home folder?", home)
	}
	return names, buf.Bytes(), w.Close()
}

// writeBackup writes a new file. On an error it leaves no file.
func writeBackup(path string, archive []byte, passphrase string) (err error) {
	to, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		return err
	}
	to.SetWorkFactor(scryptWork)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return usagef("%s already exists: write the backup to a new file", path)
	} else if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	w, err := age.Encrypt(f, to)
	if err != nil {
		return err
	}
	if _, err := w.Write(archive); err != nil {
		return err
	}
	return errors.Join(w.Close(), f.Sync())
}

func newKeysRestoreCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore the keys of a backup into the home; existing keys are never overwritten",
		Long: `Restore the keys of a backup into the home. If any of them already exists, nothing is
written. A validator's key must be used by one node only: stop the old node for good, and
read "Move a validator" in docs/how-to/keys.md about its signing state.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			sealed, err := os.ReadFile(args[0])
			if err != nil {
				return usagef("%w", err)
			}
			passphrase, err := passphraseOf(env, args[0])
			if err != nil {
				return err
			}
			files, err := openBackup(sealed, passphrase)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return restoreKeys(env, files)
		},
	}
	addPassphraseFlag(cmd.Flags(), "backup")
	return cmd
}

type backupFile struct {
	name    string
	content []byte
}

// openBackup decrypts a backup and checks all of it.
func openBackup(sealed []byte, passphrase string) (files []backupFile, err error) {
	with, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return nil, err
	}
	with.SetMaxWorkFactor(client.ScryptWork)
	plain, err := age.Decrypt(bytes.NewReader(sealed), with)
	var other *age.NoIdentityMatchError
	if errors.As(err, &other) {
		return nil, errors.New("wrong passphrase")
	} else if err != nil {
		return nil, fmt.Errorf("not a backup: %w", err)
	}
	archive, err := io.ReadAll(io.LimitReader(plain, maxBackup+1))
	if err != nil {
		return nil, fmt.Errorf("damaged: %w", err)
	}
	if len(archive) > maxBackup {
		return nil, fmt.Errorf("not a backup: more than %d bytes", maxBackup)
	}
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("damaged: %w", err)
		}
		known := slices.ContainsFunc(files, func(f backupFile) bool { return f.name == header.Name })
		if header.Typeflag != tar.TypeReg || !backedUp.MatchString(header.Name) || known || len(files) == maxBackupFiles {
			return nil, fmt.Errorf("not a backup: unexpected file %q", header.Name)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return nil, fmt.Errorf("damaged: %w", err)
		}
		files = append(files, backupFile{header.Name, content})
	}
}

func restoreKeys(env *cliEnv, files []backupFile) error {
	for _, f := range files {
		if _, err := os.Lstat(filepath.Join(env.Home, f.name)); err == nil {
			return usagef("%s already exists, and nothing was restored: move it away, or restore into another home", filepath.Join(env.Home, f.name))
		}
	}
	for _, f := range files {
		path := filepath.Join(env.Home, f.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := writeNewFile(path, f.content, 0o600); err != nil {
			return err
		}
		fmt.Fprintln(env.Out, f.name)
	}
	return nil
}

// writeNewFile writes a new file; it never overwrites one. On an error it leaves no file.
func writeNewFile(path string, content []byte, mode os.FileMode) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}
