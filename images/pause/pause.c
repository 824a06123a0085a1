// Holds a pod's namespaces: as process 1 it reaps orphans and ends on SIGTERM, and does nothing else.
#include <signal.h>

int main(void) {
    // with SIGCHLD ignored the kernel reaps every child at once
    signal(SIGCHLD, SIG_IGN);
    // a blocked signal reaches process 1, one with the default action does not
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, 0);
    int which;
    sigwait(&ends, &which);
    return 0;
}
