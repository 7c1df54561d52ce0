// What keeps the namespaces of a test cluster alive? The first process in them: it reaps orphans and ends with its
// standard input, and then the kernel ends everything that ever ran inside.
//
// usage: keeper SOURCE:TARGET ... binds each SOURCE over TARGET (both are made if missing), says "ready" and waits.
// The end of its input, which comes however the owner dies, ends the cluster; the line "keep" before it does not.
package main

import (
	"bufio"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	for _, argument := range os.Args[1:] {
		source, target, found := strings.Cut(argument, ":")
		if !found {
			fail("usage: keeper SOURCE:TARGET ...")
		}
		for _, folder := range []string{source, target} {
			if err := os.MkdirAll(folder, 0o755); err != nil {
				fail(err)
			}
		}
		if err := syscall.Mount(source, target, "", syscall.MS_BIND, ""); err != nil {
			fail("bind ", source, " over ", target, ": ", err)
		}
	}
	orphans := make(chan os.Signal, 64)
	signal.Notify(orphans, syscall.SIGCHLD)
	go reap(orphans)
	fmt.Println("ready")

	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	if strings.TrimSpace(line) == "keep" {
		select {}
	}
}

func reap(orphans <-chan os.Signal) {
	for range orphans {
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err != nil || pid <= 0 {
				break
			}
		}
	}
}

func fail(reason ...any) {
	fmt.Fprintln(os.Stderr, reason...)
	os.Exit(1)
}
