// Keeps a pod's namespaces alive. As process 1, it reaps orphans, and exits on SIGTERM or SIGINT.
#include <signal.h>

int main(void) {
    // with SIGCHLD ignored the kernel reaps every child at once
    signal(SIGCHLD, SIG_IGN);
    // the kernel drops a signal to process 1 that has the default action, but keeps a blocked signal pending
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, 0);
    int which;
    sigwait(&ends, &which);
    return 0;
}
