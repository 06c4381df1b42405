package testnet

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/starling-kv/starling/e2e/runner"
)

// imageName is the repository of all images of networks; a tag is the hash of an image's content.
// So an image is built once, and found by the next run.
const imageName = "starling-e2e"

// oldImage is the age at which an unused image is removed.
const oldImage = "12h"

// images are the images of a network's programs, each with one program, made from
// networks/Dockerfile.
type images struct {
	mu     sync.Mutex
	byPath map[string]string // tags by path of the program
}

// of returns the image of a program, after build.
func (i *images) of(program string) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.byPath[program]
}

// build builds the images of programs that Docker does not have yet.
func (i *images) build(ctx context.Context, programs []string) error {
	root, err := runner.Root(ctx)
	if err != nil {
		return err
	}
	dockerfile, err := os.ReadFile(filepath.Join(root, "networks", "Dockerfile"))
	if err != nil {
		return err
	}
	errs := make([]error, len(programs))
	var wg sync.WaitGroup
	for k, program := range programs {
		wg.Go(func() {
			tag, err := buildImage(ctx, dockerfile, program)
			if err != nil {
				errs[k] = fmt.Errorf("image of %s: %w", program, err)
				return
			}
			i.mu.Lock()
			defer i.mu.Unlock()
			if i.byPath == nil {
				i.byPath = map[string]string{}
			}
			i.byPath[program] = tag
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// makeImages builds missing images, and assigns its image to each container.
func (d *Docker) makeImages(ctx context.Context) error {
	all := append([]*container{d.relay}, d.inOrder()...)
	var programs []string
	for _, c := range all {
		programs = append(programs, c.program)
	}
	slices.Sort(programs)
	if err := d.images.build(ctx, slices.Compact(programs)); err != nil {
		return err
	}
	for _, c := range all {
		c.image = d.images.of(c.program)
	}
	return nil
}

func buildImage(ctx context.Context, dockerfile []byte, program string) (tag string, err error) {
	if err := requireStatic(program); err != nil {
		return "", err
	}
	hash, err := hashFile(program, append(slices.Clone(dockerfile), filepath.Base(program)...))
	if err != nil {
		return "", err
	}
	tag = imageName + ":" + hash
	if _, err := docker(ctx, "image", "inspect", "--format", "{{.Id}}", tag); err == nil {
		return tag, nil
	}
	dir, err := os.MkdirTemp("", "starling-image-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := writeContext(dir, dockerfile, program); err != nil {
		return "", err
	}
	_, err = docker(ctx, "build", "--quiet", "--label", imageLabel+"=", "--tag", tag, dir)
	return tag, err
}

// writeContext writes the build context of networks/Dockerfile, as networks/build-image.sh does.
func writeContext(dir string, dockerfile []byte, program string) error {
	for name, mode := range map[string]os.FileMode{"bin": 0o755, "root/home": 0o755, "root/tmp": 0o777 | os.ModeSticky} {
		path := filepath.Join(dir, name)
		// Chmod is not subject to the umask
		if err := errors.Join(os.MkdirAll(path, mode), os.Chmod(path, mode)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), dockerfile, 0o644); err != nil {
		return err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "bin", filepath.Base(program)), content, 0o755)
}

// requireStatic returns an error for a program that needs libraries, which an image FROM scratch
// does not have: the program would end with "no such file or directory", which refers to the
// loader.
func requireStatic(program string) error {
	file, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("not a program for Linux: %w", err)
	}
	defer func() { _ = file.Close() }()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			return errors.New("the program is linked to libraries, which the image does not have: build it with CGO_ENABLED=0")
		}
	}
	return nil
}

// hashFile hashes a file together with the rest of an image's content.
func hashFile(path string, more []byte) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	hash := sha256.Sum256(append(content, more...))
	return hex.EncodeToString(hash[:8]), nil
}

// removeOldImages removes images of earlier runs, since each new build of a program leaves one.
func removeOldImages(ctx context.Context) error {
	_, err := docker(ctx, "image", "prune", "--all", "--force", "--filter", "label="+imageLabel, "--filter", "until="+oldImage)
	return err
}
